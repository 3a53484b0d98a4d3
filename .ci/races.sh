#!/usr/bin/env bash
# Looks for races in the CUDA kernels without a GPU. ThreadSanitizer watches every CUDA thread
# (tests/emulation/race_detector.h) and must report nothing. Then each barrier and fence of the kernels is disabled in
# turn, and it must report a race. A barrier that protects nothing, or is not watched, fails this test. The emulation
# must also detect kernels with other kinds of errors.
set -euo pipefail
build=$1
here=$(pwd)
cmake -S . -B "$build" -G Ninja -DFASTAGG_MODULE=OFF -DFASTAGG_CUDA=OFF -DFASTAGG_RACES=ON -DFASTAGG_DEVELOPER=ON >"$build.log" ||
  { cat "$build.log"; exit 1; }
cmake --build "$build" --target fastagg_races fastagg_planted >>"$build.log" || { cat "$build.log"; exit 1; }
printf 'built in %ss\n' "$SECONDS"
cd "$build"

for error in mask barrier shuffle; do
  if ./fastagg_planted $error 2>"$error.log"; then echo "not noticed: $error"; exit 1; fi
  grep -q emulation "$error.log" || { cat "$error.log"; exit 1; }
done
./fastagg_planted shared
./fastagg_planted order

TSAN_OPTIONS=halt_on_error=1 ./fastagg_races >clean.log 2>&1 || { head -n 60 clean.log; exit 1; }

part_of() { # FILE: what of fastagg_races runs its kernels
  case $1 in
    norms.cuh) echo norms ;;
    moments.cuh) echo steps ;;
    cached_step.cu) echo rows ;;
    combine.cu) echo combining ;;
    noisy_step.cu) echo noise ;;
    distill.cu) echo distillation ;;
    *) echo "$1 has barriers: which part of fastagg_races runs them?" >&2; exit 1 ;;
  esac
}
planted=0
while IFS=: read -r path line _; do
  file=$(basename "$path")
  part=$(part_of "$file")
  if FASTAGG_PLANT=$file:$line TSAN_OPTIONS=halt_on_error=1 ./fastagg_races "$part" >planted.log 2>&1 ||
    ! grep -q "data race" planted.log; then
    echo "$path:$line: without it no race is found"
    exit 1
  fi
  planted=$((planted + 1))
done < <(cd "$here" && grep -nE '__syncthreads\(\)|__syncwarp\(\)|__threadfence\(\)' csrc/cuda/*.cu csrc/cuda/*.cuh)
test "$planted" -gt 10
printf 'no race; %s barriers and fences, each of which hides one (%ss)\n' "$planted" "$SECONDS"
