#!/usr/bin/env bash
# Tests a wheel on one Python, with the newest version of every package. Takes WORKDIR, that Python, and the wheel or the sources to make it of.
#
# A package index has torch for x86-64 with CUDA: 3 GB of libraries that nothing here calls. One library of 30 kB has their names and their functions,
# which all return cudaErrorNoDevice (100), so torch is on the CPU. `nox -s newest` takes the libraries themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$(pwd) work=$1 python=$2 wheel=$3
"$python" -m venv "$work"
export PATH=$work/bin:$PATH COLUMNS=80
if test -d "$wheel"; then
  pip wheel -q --no-deps -w "$work/wheel" "$wheel"
  wheel=$(echo "$work"/wheel/*.whl)
fi
printf '%s: %ss\n' "${wheel##*/}" "$SECONDS"

cd "$work"
pip install -qq --no-deps torch
torch=$(echo lib/python3.*/site-packages/torch)
if test -f "$torch/lib/libtorch_cuda.so"; then
  sed -i -E '/^Requires-Dist: (nvidia|cuda|triton)/d' "$torch"-*.dist-info/METADATA
  readelf -d "$torch"/lib/*.so | sed -nE 's/.*NEEDED.*\[(lib(cu|nccl|nv)[^]]*)\]/\1/p' | sort -u >libraries
  nm -D --undefined-only --with-symbol-versions "$torch"/lib/*.so | awk '$2 ~ /^_*(cu|nccl|nv)/ {print $2}' | sort -u >functions
  { echo 'int no_device(void) { return 100; }'; sed 's/@.*//; s/.*/int &(void) __attribute__((alias("no_device")));/' functions | sort -u; } >cuda.c
  awk -F@ 'NF > 1 {of[$2] = of[$2] $1 ";"} END {for (version in of) print version " {" of[version] "};"}' functions >cuda.map
  cc -shared -fPIC -w -o cuda.so cuda.c -Wl,--version-script=cuda.map
  while read -r name; do cp cuda.so "$torch/lib/$name"; done <libraries
fi
pip install -qq "$wheel[test]"
printf 'installed: %ss\n' "$SECONDS"

python -P "$here/.ci/one_step.py"
pip list --format freeze | grep -iE '^(torch|numpy|typer|pydantic|rich|scipy|scikit-learn|matplotlib|starlette)=='
commands=$(fastagg --help | sed -nE '/^Commands:/,$s/^  ([a-z]+) .*/\1/p')
test "$(wc -w <<<"$commands")" -gt 5
for command in $commands; do fastagg "$command" --help | grep "^Usage: fastagg $command " >/dev/null; done
fastagg demo --out demo
test -s demo/report.html
python -c 'import fastagg; help(fastagg.FedBuff); help(fastagg.Server)' | grep 'clip_norm: an update with' >/dev/null
cd "$here"
pytest -q -p no:cacheprovider tests/cli tests/docs/test_api_pages.py
pytest -q -p no:cacheprovider tests/test_errors.py
printf 'done: %ss\n' "$SECONDS"
