#!/usr/bin/env bash
# Checks the CPU kernels of the wheel, and on ARM without an ARM machine: takes BUILD, and the folder with the trace
# program (tests/native) of the wheel's objects. This program, and one that is compiled for 64-bit ARM and emulated, must
# give the bits of tests/native/trace.txt. Logs that servers wrote on this machine are executed again there, and must
# lead to the same digests and models.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 wheels=$2
printf '%s: ' "$(uname -m)"
"$wheels/fastagg_trace" tests/native/trace.txt
mkdir -p "$build-logs"
"$wheels/fastagg_audit" write "$build-logs" | tee "$build-roots"

compiler=aarch64-linux-gnu-g++
if ! { command -v $compiler && command -v qemu-aarch64; } >/dev/null; then
  echo "no cross compiler or emulator: ARM was not checked"
  exit 0
fi
cmake -S . -B "$build" -G Ninja -DFASTAGG_DEVELOPER=ON -DFASTAGG_MODULE=OFF -DFASTAGG_TRACE=ON -DCMAKE_SYSTEM_NAME=Linux \
  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=$compiler -DCMAKE_EXE_LINKER_FLAGS=-static \
  >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }
printf 'aarch64, emulated: '
qemu-aarch64 "$build/fastagg_trace" tests/native/trace.txt --few
qemu-aarch64 "$build/fastagg_audit" audit "$build-logs" | cmp "$build-roots" -
echo "aarch64, emulated: audits give the same roots"
