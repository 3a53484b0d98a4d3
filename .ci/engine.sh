#!/usr/bin/env bash
# Builds the engine without Python, with AddressSanitizer and UBSan, then with ThreadSanitizer. The first runs its
# operations, failed allocations and damaged bytes of a log; the second runs its threads. A processor that CMake does not
# know gets one set of kernels instead of four, which would take most of the time; nox -s sanitizers tests them all.
# Takes BUILD.
set -euo pipefail
build=$1
made() { # NAME CMAKE_OPTIONS...
  local name=$1
  shift
  cmake -S . -B "$build/$name" -G Ninja -DFASTAGG_MODULE=OFF -DFASTAGG_CUDA=OFF -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=any "$@" \
    >"$build/$name.log" || { cat "$build/$name.log"; exit 1; }
  cmake --build "$build/$name" --target fastagg_engine_tests >>"$build/$name.log" || { cat "$build/$name.log"; exit 1; }
  echo "$name: built (${SECONDS}s)"
}
mkdir -p "$build"
made addresses -DFASTAGG_SANITIZE=address,undefined -DFASTAGG_DEVELOPER=ON
ASAN_OPTIONS=alloc_dealloc_mismatch=0 "$build/addresses/fastagg_engine_tests"
made threads -DFASTAGG_SANITIZE=thread
TSAN_OPTIONS=halt_on_error=1 "$build/threads/fastagg_engine_tests" threads
