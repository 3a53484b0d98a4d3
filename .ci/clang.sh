#!/usr/bin/env bash
# Checks with Clang (CLANG, or the newest installed one): the kernels and the bindings must compile without warnings,
# and the kernels must give the bits of tests/native/trace.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
clang=${CLANG:-$(compgen -c | grep -E '^clang\+\+(-[0-9]+)?$' | sort -uV | tail -n 1 || true)}
if test -z "$clang"; then
  echo "no clang: not checked"
  exit 0
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DFASTAGG_DEVELOPER=ON -DFASTAGG_CUDA=OFF \
  -DFASTAGG_TRACE=ON -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" \
  >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }
if grep -q warning: "$build.log"; then
  grep -A5 warning: "$build.log"
  exit 1
fi
printf '%s: ' "$("$clang" --version | head -n 1)"
"$build/fastagg_trace" tests/native/trace.txt
