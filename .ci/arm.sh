#!/usr/bin/env bash
# Checks the CPU kernels on ARM without an ARM machine. The trace program (tests/native) is built for this machine, and
# cross-compiled for 64-bit ARM and emulated. Both must give the bits of tests/native/trace.txt. Logs that servers wrote
# on this machine are executed again there, and must lead to the same digests and models.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1

trace() { # NAME CMAKE_OPTIONS...
  local name=$1
  shift
  cmake -S . -B "$build-$name" -G Ninja -DFASTAGG_DEVELOPER=ON -DFASTAGG_MODULE=OFF -DFASTAGG_TRACE=ON "$@" \
    >"$build-$name.log" || { cat "$build-$name.log"; exit 1; }
  cmake --build "$build-$name" >>"$build-$name.log" || { cat "$build-$name.log"; exit 1; }
}

trace native
printf '%s: ' "$(uname -m)"
"$build-native/fastagg_trace" tests/native/trace.txt
mkdir -p "$build-logs"
"$build-native/fastagg_audit" write "$build-logs" | tee "$build-roots"

compiler=aarch64-linux-gnu-g++
if ! { command -v $compiler && command -v qemu-aarch64; } >/dev/null; then
  echo "no cross compiler or emulator: ARM was not checked"
  exit 0
fi
trace arm -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$compiler \
  -DCMAKE_EXE_LINKER_FLAGS=-static
printf 'aarch64, emulated: '
qemu-aarch64 "$build-arm/fastagg_trace" tests/native/trace.txt --few
qemu-aarch64 "$build-arm/fastagg_audit" audit "$build-logs" | cmp "$build-roots" -
echo "aarch64, emulated: audits give the same roots"
