#!/usr/bin/env bash
# Build the extension with AddressSanitizer and UBSan, the CUDA kernels emulated on the CPU with it (csrc/emulation), and
# run on it every test that is marked `kernel` and not `slow`: the CPU's, and those that compare the two. tests/conftest.py
# sees to it that the mark is there.
# Also: no per-instruction-set object may hold a weak symbol, or the linker could keep the AVX-512 copy for everybody.
set -euo pipefail
build=$1
shift # what follows are options of CMake
here=$(pwd)
cmake -S . -B "$build" -G Ninja -DFASTAGG_SANITIZE=ON -DFASTAGG_EMULATE_CUDA=ON -DFASTAGG_DEVELOPER=ON \
  -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" "$@" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }
printf 'built in %ss\n' "$SECONDS"

tables=$(find "$build" -name 'kernels_*.o')
for object in $tables; do
  if weak=$(nm -C "$object" | grep -E ' [VWu] ' | grep -v '__asan\|__odr_asan\|DW.ref'); then
    echo "weak symbols in $object:"
    echo "$weak"
    exit 1
  fi
done
test "$(uname -m)" != x86_64 || test "$(wc -w <<<"$tables")" = 4

rm -rf "$build/package"
mkdir -p "$build/package"
cp -r fastagg "$build/package/fastagg"
cp "$build"/_native*.so "$build/package/fastagg/"
# Torch leaks by design at exit, and its own allocations are not what is tested here.
# The emulating build has an operator new of its own, which tests make fail, over ASan's malloc: no mismatch.
export ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1
export LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" PYTHONPATH="$build/package"
export FASTAGG_TEST_EXTENSION="$build/package"
# pytest, not python -m pytest, which would put this folder's unbuilt package first.
pytest -n auto -q -p no:cacheprovider -m "kernel and not slow" \
  "$here/tests" --ignore "$here/tests/sim" --ignore "$here/tests/integrations"
# An arrival on a device that is cut at any line has happened or has not: its launches are one native call.
FASTAGG_TEST_EMULATED=1 pytest -n auto -q -p no:cacheprovider "$here/tests/serving/test_torn.py" \
  -k "each_line_of_receive and CA2FL and int8 and not latest"
