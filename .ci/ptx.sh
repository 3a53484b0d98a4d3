#!/usr/bin/env bash
# Runs nvcc's PTX of the CUDA kernels on the CPU (tests/emulation/ptx), and compares it with the CPU's kernels, bit for bit.
# So what nvcc's front end made of the sources is tested: contraction, shuffles, masks, parameters. Every kernel must
# have run. Then errors are planted in the PTX of the first architecture, and a comparison must find each: one of each kind
# and file of kernels, or fifteen where architectures are named.
#   bash .ci/ptx.sh FOLDER [COMPUTE_CAPABILITY...]   80 if none is given; sm_90's PTX is sm_80's, sm_120's is another
set -euo pipefail
mkdir -p "$1"
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
here=$(pwd)

compare() { # ARCHITECTURE
  local folder=$build/$1
  cmake -S . -B "$folder" -G Ninja -DFASTAGG_EMULATE_CUDA=PTX "-DFASTAGG_PTX=$1" \
    -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" \
    >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
  cmake --build "$folder" --target _native >>"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
  rm -rf "$folder/package"
  mkdir -p "$folder/package"
  cp -r fastagg "$folder/package/fastagg"
  cp "$folder"/_native*.so "$folder/package/fastagg/"
  export PYTHONPATH=$folder/package FASTAGG_TEST_EXTENSION=$folder/package FASTAGG_PTX_COUNTS=$folder/counts
  rm -f "$FASTAGG_PTX_COUNTS"
  printf 'sm_%s: built (%ss)\n' "$1" "$SECONDS"
  pytest -n auto -q -p no:cacheprovider "$here/tests/csrc/test_cuda_agreement.py"
  FASTAGG_TEST_EMULATED=1 pytest -n auto -q -p no:cacheprovider "$here/tests/ops/test_distill.py"
  python - "$FASTAGG_PTX_COUNTS" <<'PY'
import sys
from collections import Counter

launches = Counter()
for line in open(sys.argv[1]):
    count, name = line.split(" ", 1)
    launches[name.strip()] += int(count)
idle = sorted(name for name, count in launches.items() if count == 0)
assert launches and not idle, "\n".join(["kernels that no test has launched:", *idle])
print(f"{len(launches)} kernels, each launched; {launches.total()} launches")
PY
  unset FASTAGG_PTX_COUNTS
}

architectures=("${@:-80}")
for architecture in "${architectures[@]}"; do compare "$architecture"; done
export PYTHONPATH=$build/${architectures[0]}/package FASTAGG_TEST_EXTENSION=$build/${architectures[0]}/package
plants=("judge.ptx:mask:0=reading or judge" "judge.ptx:narrow:4=reading or judge" "judge.ptx:lane:8=reading or judge"
  "step.ptx:fused:20=test_step" "cached_step.ptx:mask:17=cached_step")
if (($# > 0)); then
  plants+=("rows.ptx:mask:3=sums" "rows.ptx:narrow:7=sums"
    "step.ptx:mask:20=test_step" "step.ptx:fused:81=test_step" "step.ptx:lane:5=8_bits"
    "cached_step.ptx:narrow:17=cached_step" "cached_step.ptx:lane:12=cached_step")
fi
python .ci/ptx_plants.py tests/csrc/test_cuda_agreement.py "${plants[@]}"
