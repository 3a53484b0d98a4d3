#!/usr/bin/env bash
# Builds the engine and the CPU kernels without Python, with AddressSanitizer and UBSan, then with ThreadSanitizer.
# The first runs the engine's operations, failed allocations, damaged bytes of a log, and the kernels' trace; the second
# runs the engine's threads. The trace keeps its settings until it ends, so its leaks are not counted. Takes BUILD.
set -euo pipefail
build=$1
made() { # NAME TARGETS CMAKE_OPTIONS...
  local name=$1 targets=$2
  shift 2
  cmake -S . -B "$build/$name" -G Ninja -DFASTAGG_MODULE=OFF -DFASTAGG_CUDA=OFF -DFASTAGG_DEVELOPER=ON "$@" \
    >"$build/$name.log" || { cat "$build/$name.log"; exit 1; }
  # shellcheck disable=SC2086
  cmake --build "$build/$name" --target $targets >>"$build/$name.log" || { cat "$build/$name.log"; exit 1; }
  echo "$name: built (${SECONDS}s)"
}
mkdir -p "$build"
made addresses "fastagg_engine_tests fastagg_trace" -DFASTAGG_SANITIZE=ON -DFASTAGG_TRACE=ON
ASAN_OPTIONS=alloc_dealloc_mismatch=0 "$build/addresses/fastagg_engine_tests"
ASAN_OPTIONS=detect_leaks=0 "$build/addresses/fastagg_trace" tests/native/trace.txt
made threads fastagg_engine_tests -DFASTAGG_ENGINE_TESTS_SANITIZE=thread
TSAN_OPTIONS=halt_on_error=1 "$build/threads/fastagg_engine_tests" threads
echo "all of it: ${SECONDS}s"
