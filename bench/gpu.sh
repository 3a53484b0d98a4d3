#!/usr/bin/env bash
# All that takes a GPU, in one command of under ten minutes. Every stage has a time limit, writes its outcome into
# $OUT/report.md when it ends, and a failure keeps no other stage from running.
#   bench/gpu.sh             all stages: build smoke tests small middle sanitize large
#   bench/gpu.sh STAGE...    some of them, in this order
#   bench/gpu.sh list        what is timed: every case, size and candidate. It needs no card and no build
#   DRY=1 bench/gpu.sh       without a card: the same stages, on the CPU's emulation of CUDA and with small sizes
# It fails if a stage fails, reaches its limit, finds no kernels, or runs no test; the report has the reason.
# BUILD is the folder of the build (build-gpu), OUT that of results ($BUILD/out), ten files. COMMIT names what is measured,
# where there is no git. It needs nvcc (docs/cuda.md: from pip), cmake, ninja, pybind11, torch with CUDA, numpy, pytest and
# hypothesis, and installs nothing. The benchmarks need pytest-benchmark, too: on a machine without a package index, bring
# it along in the folder build-gpu/packages (pip install --target build-gpu/packages pytest-benchmark).
set -uo pipefail
cd "$(dirname "$0")/.."
here=$PWD build=${BUILD:-$PWD/build-gpu} out=${OUT:-${BUILD:-$PWD/build-gpu}/out} dry=${DRY:-}
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

# What a wheel has for this card: its code, made of the oldest architecture's PTX.
run_build() {
  nvidia-smi || { echo "there is no card, or no driver: nvidia-smi fails"; return 1; }
  test -n "$dry" || nvcc_works || return
  local options card
  card=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  test "$card" = 80 && card=""
  options=(-DFASTAGG_CUDA=ON "-DFASTAGG_CUDA_ARCHITECTURES=80${card:+;$card}")
  test -z "$dry" || options=(-DFASTAGG_EMULATE_CUDA=ON)
  cmake -S . -B "$build" -G Ninja "${options[@]}" -DPython_EXECUTABLE="$(command -v python3)" \
    -Dpybind11_DIR="$(python3 -m pybind11 --cmakedir)" && cmake --build "$build" --target _native &&
    rm -rf "$build/package" && mkdir -p "$build/package" && cp -r fastagg "$build/package" &&
    cp "$build"/_native*.so "$build/package/fastagg" && python3 -c "import fastagg; print(fastagg.build_info())" && has_kernels
}

has_kernels() { # or says why not. Without them every test of a card is left out
  test -d "$build/package" || { echo "nothing was built: the stage build comes first"; return 1; }
  test -n "$dry" || python3 -c "import fastagg, torch; fastagg.FedBuff(torch.zeros(4), device='cuda')"
}

nvcc_works() {
  command -v nvcc || { echo "there is no nvcc on PATH"; return 1; }
  mkdir -p "$build" && echo '__global__ void nothing() {}' >"$build/nothing.cu"
  nvcc -c "$build/nothing.cu" -o "$build/nothing.o" || { echo "$(command -v nvcc) does not compile"; return 1; }
}

testing() { # ARGUMENTS OF PYTEST: fails, too, if no test has run
  has_kernels || return
  local said=$out/tested status
  "${before[@]}" python3 -m pytest -q -p no:cacheprovider "$@" 2>&1 | tee "$said"
  status=${PIPESTATUS[0]}
  test "$status" != 0 || grep -Eq '\b[1-9][0-9]* passed' "$said" || { echo "no test has run"; status=5; }
  rm -f "$said"
  return "$status"
}

run_smoke() { # every kind of rule takes answers on the device, and has the CPU's bits
  has_kernels && python3 bench/gpu_smoke.py
}

# Named, because to collect the others takes packages that an image with CUDA lacks.
run_tests() { # a test that was left out has shown nothing: the log says which
  local files=(tests/csrc/test_cuda_agreement.py tests/csrc/test_cuda_device.py)
  local chosen=(-m cuda)
  test -z "$dry" || chosen=(-k "test_reading or test_measure or refuses")
  testing -rs "${chosen[@]}" "${files[@]}"
}

measure() { # NAME SIZES CASE...: python bench/report.py --add NAME.json puts them into the report
  local name=$1 sizes=$2 device=(--device cuda --rounds 11 --within 0.5 --impatient)
  shift 2
  test -z "$dry" || sizes=1000 device=(--rounds 3 --impatient)
  testing bench/ "${@/#/--case=}" "${device[@]}" --sizes "$sizes" "--benchmark-json=$out/$name.json"
}
run_small() { measure small 1000,10000,100000 arrival && measure presets 1000 preset; } # where the host's time shows
run_middle() { measure million 1000000 arrival && measure middle 11200000 kernel arrival preset "round *" "* round" "upload*"; }
run_large() { measure large 110000000 kernel arrival preset "round *" "* round" "upload*"; }
run_list() {
  for stage in small middle large; do
    testing() { python3 -m pytest -q -p no:cacheprovider --collect-only "$@" | grep -v '^$'; }
    echo "-- $stage" && dry='' "run_$stage" || return
  done
}

# torch's own allocator hands out parts of large blocks, in which memcheck sees no overrun. initcheck: what nobody wrote.
# racecheck: shared memory. synccheck: barriers and masks.
sanitize() { # TOOL
  local chosen=(-m cuda)
  test -z "$dry" || chosen=(-k "test_measure or refuses")
  before=(compute-sanitizer --tool "$1" --error-exitcode 9 --launch-timeout 120)
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 testing -x tests/csrc/test_cuda_agreement.py "${chosen[@]}" --hypothesis-profile sanitizer
}
run_memcheck() { sanitize memcheck; }
run_initcheck() { sanitize initcheck; }
run_racecheck() { sanitize racecheck; }
run_synccheck() { sanitize synccheck; }
export -f has_kernels nvcc_works testing measure sanitize run_small run_middle run_large

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
    small) stage small bench 60 ;;
    middle) stage middle bench 80 ;;
    sanitize) stage memcheck sanitize 40; for tool in initcheck racecheck synccheck; do stage $tool sanitize 30; done ;;
    large) stage large bench 100 ;;
    list) run_list; exit ;;
    *) echo "no stage $name" >&2; exit 2 ;;
  esac
done
printf '\n%s s\n' "$SECONDS" >>"$out/report.md"
exit $failed
