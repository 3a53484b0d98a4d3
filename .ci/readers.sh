#!/usr/bin/env bash
# Builds the extension with ThreadSanitizer, and runs .ci/readers.py on it in a plain Python: threads that read what
# servers hand out beside threads that write. It must report no race in fastagg's code, and no version may be mixed with
# another. Then a race is planted, and it must be found. Takes BUILD.
set -euo pipefail
build=$1
cmake -S . -B "$build" -G Ninja -DFASTAGG_SANITIZE=thread -DFASTAGG_CUDA=OFF \
  -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" --target _native fastagg_clocklock >>"$build.log" || { cat "$build.log"; exit 1; }
printf 'built in %ss\n' "$SECONDS"

rm -rf "$build/package"
mkdir -p "$build/package"
cp -r fastagg "$build/package/fastagg"
cp "$build"/_native*.so "$build/package/fastagg/"
# Python and torch are not built with it: what they read is not looked at, but their locks are seen.
export TSAN_OPTIONS="halt_on_error=1 report_signal_unsafe=0" OMP_NUM_THREADS=1
export PYTHONPATH="$build/package"
run() { LD_PRELOAD="$(c++ -print-file-name=libtsan.so) $build/libfastagg_clocklock.so" python -P .ci/readers.py "$@"; }
run 2>"$build/clean.txt" || { head -n 80 "$build/clean.txt"; exit 1; }
if run planted >"$build/planted.txt" 2>&1 || ! grep -q "data race" "$build/planted.txt"; then
  echo "the planted race was not found"
  exit 1
fi
printf 'no race, no mixed version; a planted race is found (%ss)\n' "$SECONDS"
