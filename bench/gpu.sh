#!/usr/bin/env bash
# All that takes a GPU, in one command: builds the extension, runs the CUDA tests and the benchmarks, and leaves JSON and
# logs in $OUT (build-gpu/out if that is not set). The sanitizers are a second run: they take longer.
#   bench/gpu.sh [build] [test] [bench]       all three by default
#   bench/gpu.sh sanitize                     memcheck, initcheck, racecheck and synccheck, once it is built
# Needs nvcc, cmake, ninja, pybind11, torch with CUDA, numpy, pytest and hypothesis; installs nothing.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-gpu/out}
mkdir -p "$out"
stages=${*:-build test bench}
failed=0
# Named, because to collect the others takes packages that an image with CUDA lacks.
tests=(tests/csrc/test_cuda_agreement.py tests/csrc/test_cuda_device.py tests/csrc/test_cuda_size.py
  tests/csrc/test_cuda_tiers.py tests/sharded/test_cards.py)

stage() { # name, command...: its output goes to a log as well, and a failure does not keep the others from running
  local name=$1
  shift
  case " $stages " in *" ${name%%-*} "*) ;; *) return 0 ;; esac
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

test_cuda() { # a test that was left out has shown nothing: the log says which
  python3 -m pytest -q -rs -p no:cacheprovider -m cuda "$@" && ! grep -q "no tests ran" "$out/test.log"
}

# `python bench/report.py --add card.json` puts them into the report, if the tree was as committed.
sizes=11200000,110000000,1500000000
bench() {
  python3 -m pytest bench/ -q -p no:cacheprovider --case kernel --case arrival --case "upload*" --device cuda --rounds 20 \
    --sizes "$1" "--benchmark-json=$out/card.json"
}

# torch's own allocator hands out parts of large blocks, in which memcheck sees no overrun. initcheck: what nobody wrote.
# racecheck: shared memory. synccheck: barriers and masks.
sanitize() { # TOOL OPTION...
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$@" --error-exitcode 9 --launch-timeout 120 \
    python3 -m pytest -q -p no:cacheprovider tests/csrc/test_cuda_agreement.py -m cuda --hypothesis-profile sanitizer
}

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
stage build build
stage test test_cuda "${tests[@]}"
stage bench bench "$sizes"
stage sanitize-memcheck sanitize memcheck
stage sanitize-initcheck sanitize initcheck
stage sanitize-racecheck sanitize racecheck
stage sanitize-synccheck sanitize synccheck
echo "== done (${SECONDS}s), failed: $failed"
exit $failed
