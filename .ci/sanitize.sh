#!/usr/bin/env bash
# Builds the extension with AddressSanitizer and UBSan, including the CUDA kernels emulated on the CPU (tests/emulation).
# Runs on it every test that is marked `kernel` and not `slow`: the CPU's tests, and those that compare CPU and CUDA.
# tests/conftest.py checks that the mark is there. Also checks that no object of an instruction set has a weak symbol;
# the linker could otherwise keep the AVX-512 copy for all machines.
set -euo pipefail
build=$1
shift # what follows are options of CMake
here=$(pwd)
cmake -S . -B "$build" -G Ninja -DFASTAGG_SANITIZE=address,undefined -DFASTAGG_EMULATE_CUDA=ON -DFASTAGG_DEVELOPER=ON \
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

# The engine without Python: its operations, failed allocations, and damaged bytes of a log.
cmake --build "$build" --target fastagg_engine_tests >>"$build.log" || { cat "$build.log"; exit 1; }
ASAN_OPTIONS=alloc_dealloc_mismatch=0 "$build/fastagg_engine_tests"

rm -rf "$build/package"
mkdir -p "$build/package"
cp -r fastagg "$build/package/fastagg"
cp "$build"/_native*.so "$build/package/fastagg/"
# Torch leaks by design at exit, and its allocations are not tested here. The emulating build has its own operator new,
# which tests make fail. It uses ASan's malloc, so this is not a mismatch.
export ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1
export LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" PYTHONPATH="$build/package"
export FASTAGG_TEST_EXTENSION="$build/package"
# pytest instead of python -m pytest, which would put this folder's unbuilt package first.
pytest -n auto -q -p no:cacheprovider -m "kernel and not slow" \
  "$here/tests" --ignore "$here/tests/sim" --ignore "$here/tests/integrations"
# An arrival on a device that is interrupted at any line has happened or has not, because its launches are one native
# call.
FASTAGG_TEST_EMULATED=1 pytest -n auto -q -p no:cacheprovider "$here/tests/server/test_torn.py" \
  -k "each_line_of_receive and CA2FL and int8 and not latest"
