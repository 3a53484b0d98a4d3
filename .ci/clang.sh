#!/usr/bin/env bash
# Checks with Clang (CLANG, or the newest installed one): no function of the engine has more than 60 lines, so that one
# reading takes it in; the kernels and the bindings must compile without warnings; and the kernels must give the bits of
# tests/native/trace.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
sizes='{CheckOptions: {readability-function-size.LineThreshold: 60, readability-function-size.StatementThreshold: 9999}}'
clang-tidy --quiet --checks='-*,readability-function-size' --warnings-as-errors='*' --config="$sizes" \
  --header-filter=csrc/engine/ csrc/engine/*.cpp -- -std=c++17 -Icsrc
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
