#!/usr/bin/env bash
# All that takes a GPU, in one command: builds the extension, runs the CUDA tests, the kernel tests under compute-sanitizer
# and the benchmarks, and leaves JSON, a table and logs in $OUT (bench/results/gpu if that is not set).
#   bench/gpu.sh [build] [test] [sanitize] [bench]      all four by default
# Needs nvcc, cmake, ninja, pybind11, torch with CUDA, pytest and hypothesis; installs nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-bench/results/gpu}
mkdir -p "$out"
stages=${*:-build test sanitize bench}
failed=0

stage() { # name, command...: its output goes to a log as well, and a failure does not keep the others from running
  local name=$1
  shift
  case " $stages " in *" $name "*) ;; *) return 0 ;; esac
  echo "== $name (${SECONDS}s)"
  if "$@" >"$out/$name.log" 2>&1; then echo "ok"; else failed=1; echo "FAILED"; fi
  tail -n 15 "$out/$name.log"
}

build() {
  nvidia-smi
  cmake -S . -B build-gpu -G Ninja -DPython_EXECUTABLE="$(command -v python3)" \
    -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)" && cmake --build build-gpu && cp build-gpu/_native*.so fastagg/ &&
    python3 -c "import fastagg; print(fastagg.build_info())"
}

sanitize() { # racecheck watches shared memory, which only the reductions use
  local common=(--error-exitcode 9 --launch-timeout 120)
  compute-sanitizer --tool memcheck "${common[@]}" python3 -m pytest -q -p no:cacheprovider tests/csrc/test_cuda_agreement.py \
    -m cuda --hypothesis-profile sanitizer &&
    compute-sanitizer --tool racecheck "${common[@]}" python3 -m pytest -q -p no:cacheprovider tests/csrc/test_cuda_agreement.py \
      -m cuda --hypothesis-profile sanitizer -k "judge or reading"
}

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
stage build build
stage test python3 -m pytest -q -p no:cacheprovider tests -m cuda --ignore tests/integrations
stage sanitize sanitize
stage bench python3 bench/gpu.py --out "$out"
echo "== done (${SECONDS}s), failed: $failed"
exit $failed
