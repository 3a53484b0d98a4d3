#!/usr/bin/env bash
# All that takes a GPU, in one command of under ten minutes. Every stage has a time limit, writes its outcome into
# $OUT/report.md when it ends, and a failure keeps no other stage from running.
#   bench/gpu.sh             all stages: build smoke tests small middle sanitize large
#   bench/gpu.sh STAGE...    some of them, in this order
#   DRY=1 bench/gpu.sh       without a card: the same stages, on the CPU's emulation of CUDA and with small sizes
# OUT is the folder of results (build-gpu/out), eight files. COMMIT names what is measured, where there is no git. It needs
# nvcc, cmake, ninja, pybind11, torch with CUDA, numpy, pytest and hypothesis, and installs nothing. The benchmarks need
# pytest-benchmark, too: on a machine without a package index, bring it along in the folder build-gpu/packages
# (pip install --target build-gpu/packages pytest-benchmark).
set -uo pipefail
cd "$(dirname "$0")/.."
here=$PWD build=$PWD/build-gpu out=${OUT:-$PWD/build-gpu/out} dry=${DRY:-}
mkdir -p "$out"
export here build out dry
export PYTHONSAFEPATH=1 PYTHONPATH=$build/package:$here/tests:$build/packages${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
test -z "${COMMIT:-}" || export FASTAGG_COMMIT=$COMMIT
if test -n "$dry"; then # what a machine with a card has, and what it has not
  mkdir -p "$build/stubs"
  printf '#!/bin/sh\necho 9.0\n' >"$build/stubs/nvidia-smi"
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nwhile test "$1" != python3; do shift; done\nexec "$@"\n' >"$build/stubs/compute-sanitizer"
  echo 'raise ImportError("the machines with cards have no pydantic")' >"$build/stubs/pydantic.py"
  chmod +x "$build"/stubs/*
  export PATH=$build/stubs:$PATH PYTHONPATH=$build/stubs:$PYTHONPATH
fi

run_build() {
  nvidia-smi
  local options=("-DFASTAGG_CUDA_ARCHITECTURES=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)")
  test -z "$dry" || options=(-DFASTAGG_EMULATE_CUDA=ON)
  cmake -S . -B "$build" -G Ninja "${options[@]}" -DPython_EXECUTABLE="$(command -v python3)" \
    -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)" && cmake --build "$build" --target _native &&
    rm -rf "$build/package" && mkdir -p "$build/package" && cp -r fastagg "$build/package" &&
    cp "$build"/_native*.so "$build/package/fastagg" && python3 -c "import fastagg; print(fastagg.build_info())"
}

run_smoke() { # every preset takes three answers on the device, and has the CPU's bits
  python3 bench/gpu_smoke.py
}

# Named, because to collect the others takes packages that an image with CUDA lacks.
run_tests() { # a test that was left out has shown nothing: the log says which
  local files=(tests/csrc/test_cuda_agreement.py tests/csrc/test_cuda_device.py)
  local chosen=(-m cuda)
  test -z "$dry" || chosen=(-k "test_reading or test_measure or refuses")
  python3 -m pytest -q -rs -p no:cacheprovider "${chosen[@]}" "${files[@]}"
}

measure() { # NAME SIZES...: python bench/report.py --add NAME.json puts them into the report
  local sizes=$2 device=(--device cuda --rounds 11 --within 0.7 --impatient)
  test -z "$dry" || sizes=1000 device=(--rounds 3 --impatient)
  python3 -m pytest bench/ -q -p no:cacheprovider --case kernel --case arrival --case "upload*" "${device[@]}" \
    --sizes "$sizes" "--benchmark-json=$out/$1.json"
}
run_small() { measure small 1000,10000,100000; } # where the host's time shows
run_middle() { measure middle 1000000,11200000; }
run_large() { measure large 110000000,1500000000; }

# torch's own allocator hands out parts of large blocks, in which memcheck sees no overrun. initcheck: what nobody wrote.
# racecheck: shared memory. synccheck: barriers and masks.
sanitize() { # TOOL
  local chosen=(-m cuda)
  test -z "$dry" || chosen=(-k "test_measure or refuses")
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 --launch-timeout 120 \
    python3 -m pytest -q -x -p no:cacheprovider tests/csrc/test_cuda_agreement.py "${chosen[@]}" --hypothesis-profile sanitizer
}
run_memcheck() { sanitize memcheck; }
run_initcheck() { sanitize initcheck; }
run_racecheck() { sanitize racecheck; }
run_synccheck() { sanitize synccheck; }
export -f measure sanitize

failed=0
stage() { # NAME LOG LIMIT: the log takes its output, and the report a line
  local name=$1 log=$out/$2.log limit=$3 begun=$SECONDS status outcome
  test -z "$dry" || limit=$((10 * limit))
  printf '== %s\n' "$name" >>"$log"
  export -f "run_$name"
  timeout --signal=INT --kill-after=8 "$limit" bash -c "run_$name" >>"$log" 2>&1
  status=$?
  case $status in
    0) outcome=passed ;;
    124 | 137) outcome="ended by its limit of $limit s" ;;
    *) outcome="failed ($status)" ;;
  esac
  test $status = 0 || failed=1
  printf '| %s | %s | %s s | %s |\n' "$name" "$outcome" $((SECONDS - begun)) "$(tail -n 1 "$log" | tr '|' '/' | cut -c 1-100)" |
    tee -a "$out/report.md"
}

rm -f "$out"/*.log "$out"/*.json
{
  printf 'fastagg on a card: commit %s, %s%s\n\n' "${COMMIT:-$(git rev-parse HEAD || echo unknown)}" "$(date -u +%F)" "${dry:+, a dry run}"
  printf '| stage | outcome | time | last line |\n|---|---|---|---|\n'
} >"$out/report.md"
for name in ${*:-build smoke tests small middle sanitize large}; do
  case $name in
    build) stage build build 120 ;;
    smoke) stage smoke build 30 ;;
    tests) stage tests tests 60 ;;
    small) stage small bench 70 ;;
    middle) stage middle bench 50 ;;
    sanitize) stage memcheck sanitize 60; for tool in initcheck racecheck synccheck; do stage $tool sanitize 40; done ;;
    large) stage large bench 80 ;;
    *) echo "no stage $name" >&2; exit 2 ;;
  esac
done
printf '\n%s s\n' "$SECONDS" >>"$out/report.md"
exit $failed
