#!/usr/bin/env bash
# Coverage-guided fuzzing of the code that reads a server's files, SECONDS (1,800) for each, with the extension in
# fastagg/. Then inputs that reached new code are replayed with a build that has AddressSanitizer and UBSan, because
# their libraries would take over the coverage counters: .ci/fuzz.sh BUILD [SECONDS [TARGET...]]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
seconds=${2:-1800}
targets=("${@:3}")
((${#targets[@]})) || targets=(bindings log checkpoint file recipe)
pip install -q atheris
cmake -S . -B "$build" -G Ninja -DFASTAGG_SANITIZE=address,undefined -DFASTAGG_CUDA=OFF -DFASTAGG_DEVELOPER=ON \
  -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }
rm -rf "$build/package"
mkdir -p "$build/package"
cp -r fastagg "$build/package/fastagg"
rm -f "$build"/package/fastagg/_native*.so
cp "$build"/_native*.so "$build/package/fastagg/"
preload="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)"
for target in "${targets[@]}"; do
  echo "$target: $seconds s"
  fuzz() { python -P .ci/fuzz.py "$target" "$build/corpus-$target" -rss_limit_mb=4096 -artifact_prefix="$build/$target-" "$@"; }
  PYTHONPATH=. fuzz -max_total_time="$seconds" 2>&1 | grep -v 'NEW\|REDUCE\|pulse'
  # Torch leaks by design at exit.
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1 \
    PYTHONPATH="$build/package" fuzz -runs=0
done
