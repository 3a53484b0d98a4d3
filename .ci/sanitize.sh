#!/usr/bin/env bash
# Build the extension with AddressSanitizer and UBSan, the CUDA kernels emulated on the CPU with it (csrc/emulation), and
# run the kernel tests on it: the CPU's, and those that compare the two.
# Also: no per-instruction-set object may hold a weak symbol, or the linker could keep the AVX-512 copy for everybody.
set -euo pipefail
build=$1
here=$(pwd)
cmake -S . -B "$build" -G Ninja -DFASTAGG_SANITIZE=ON -DFASTAGG_EMULATE_CUDA=ON -DPython_EXECUTABLE="$(command -v python)" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" >>"$build.log" || { cat "$build.log"; exit 1; }

for object in $(find "$build" -name 'kernels_*.o'); do
  if weak=$(nm -C "$object" | grep -E ' [VWu] ' | grep -v '__asan\|__odr_asan\|DW.ref'); then
    echo "weak symbols in $object:"
    echo "$weak"
    exit 1
  fi
done

mkdir -p "$build/package"
cp -r fastagg "$build/package/fastagg"
cp "$build"/_native*.so "$build/package/fastagg/"
# Torch leaks by design at exit, and its own allocations are not what is tested here.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# pytest, not python -m pytest, which would put this folder's unbuilt package first.
LD_PRELOAD="$(c++ -print-file-name=libasan.so) $(c++ -print-file-name=libubsan.so)" PYTHONPATH="$build/package" \
  FASTAGG_TEST_EXTENSION="$build/package" pytest -q -p no:cacheprovider "$here"/tests/test_ops_*.py "$here"/tests/test_rows.py \
  "$here"/tests/test_sketch.py "$here"/tests/test_cuda_agreement.py -k "not two_to_the_31 and not unbiased"
