#!/usr/bin/env bash
# Tests what a user installs: the wheel, in new environments. Takes WORKDIR for its files and that wheel. With the core
# only, a step works. Without the command line's packages, the command names them. With the oldest versions that pyproject.toml allows, the command line and a run work.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$(pwd) work=$1 wheel=$2
mkdir -p "$work"
cd "$work" # from another folder: the package that is tested is the one that was installed

python3 -m venv core
core/bin/pip install -q -c "$here/constraints.txt" "$wheel"
core/bin/python "$here/.ci/one_step.py"
if core/bin/fastagg --help 2>refusal; then
  echo "fastagg --help worked without typer"
  exit 1
fi
grep -q 'pip install "fastagg\[cli\]"' refusal
cat refusal
core/bin/python - <<'PY'
import importlib.metadata
import re

page = importlib.metadata.metadata("fastagg").get_payload()
links = re.findall(r"\]\((.*?)\)", page)
assert links and all(link.startswith("https://") for link in links), "README's links work on a package index"
PY

# The oldest versions. torch has the version used in all other tests, because its oldest one comes with gigabytes of
# CUDA packages. With a mirror of CPU builds, FASTAGG_FLOOR_TORCH=1 uses the version in .ci/floors.txt.
python3 -m venv floors
if test -n "${FASTAGG_FLOOR_TORCH:-}"; then
  cp "$here/.ci/floors.txt" floors.txt
else
  { grep -v '^torch==' "$here/.ci/floors.txt"; grep '^torch==' "$here/constraints.txt"; } >floors.txt
fi
floors/bin/pip install -q -c floors.txt "$wheel[sim]"
floors/bin/python "$here/.ci/one_step.py"
floors/bin/fastagg --help >/dev/null
floors/bin/fastagg recipes fadas digits
floors/bin/fastagg info --json >/dev/null
floors/bin/fastagg compare fedavg-digits-large fadas-digits-large --seeds 2 --set run.uploads=200 --out demo
test -s demo/report.html

# The benchmarks of an installed package; and the time of --help, and the time that `import fastagg` adds to `import torch`.
core/bin/pip install -q -c "$here/constraints.txt" "$wheel[cli,bench]"
core/bin/fastagg bench -q --case accumulate --sizes 1e4 --rounds 3 --impatient
core/bin/python - <<'PY'
import subprocess
import sys
import time
from statistics import median


def seconds(*command):
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return median(taken)


torch = seconds(sys.executable, "-c", "import torch")
timed = "import time, torch; begun = time.perf_counter(); import fastagg; fastagg.FADAS; print(time.perf_counter() - begun)"
beyond = median(float(subprocess.check_output([sys.executable, "-c", timed])) for _ in range(5))
print(f"fastagg --help: {seconds('core/bin/fastagg', '--help'):.2f} s; import torch: {torch:.2f} s; "
      f"import fastagg and its names beyond torch: {1e3 * beyond:.0f} ms")
PY
