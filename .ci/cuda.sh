#!/usr/bin/env bash
# Compiles the CUDA kernels for every architecture and reads the compiler's report: no kernel may spill registers or use
# local memory. Then it checks the assembler's output, an older assembler, that nvcc contracts nothing, and the messages
# about a driver.
set -euo pipefail
build=$1
cmake -S . -B "$build" -G Ninja -DFASTAGG_CUDA=ON -DFASTAGG_DEVELOPER=ON -DPython_EXECUTABLE="$(command -v python)" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" --target fastagg_cuda >>"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
python - "$build.log" <<'PY'
import re
import sys

report = open(sys.argv[1]).read()
kernels = re.findall(r"Compiling entry function '(\S+)' for '(sm_\d+)'", report)
frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
architectures = sorted({arch for _, arch in kernels})
assert {"sm_80", "sm_90"} <= set(architectures), f"compiled for {architectures} only"
assert kernels and len(frames) >= len(kernels), f"{len(kernels)} kernels, {len(frames)} reports"
bad = [frame for frame in frames if frame != ("0", "0", "0")]
assert not bad, f"{len(bad)} kernels spill or use local memory: {bad}"
print(f"{len(kernels)} kernels for {', '.join(architectures)}: no spills, no local memory")
PY

# The assembler's output: 128-bit accesses in the kernels that stream vectors.
pip install -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm -c constraints.txt
packages=$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
tools=$(dirname "$(find "$packages" -name nvdisasm | head -n 1)")
export PATH="$tools:$PATH"
mapfile -t objects < <(find "$(realpath "$build")" -name '*.cu.o')
python .ci/evidence.py "${objects[@]}"

# An older assembler: CUDA 12.4's, from the package index, on the same code with the version that it knows in the
# header. Also for sm_75, which default builds do not include.
pip download -q --no-deps -d "$build/older" nvidia-cuda-nvcc-cu12==12.4.131
(cd "$build/older" && python -m zipfile -e ./*.whl .)
chmod +x "$build"/older/nvidia/cuda_nvcc/bin/ptxas
older() { # OBJECT: assembles the PTX that it holds, and that of its source for sm_75
  local kernel=csrc/cuda/$(basename "$1" .o)
  local code=$build/older/$(basename "$1" .cu.o) architecture
  mkdir -p "$code"
  (cd "$code" && cuobjdump -xptx all "$1" >/dev/null && mv ./*.ptx 80)
  nvcc -std=c++17 -fmad=false --expt-relaxed-constexpr -ptx -arch=compute_75 "$kernel" -o "$code/75"
  # In the build's code, too, products and sums have two roundings unless a source asks for one.
  test "$(grep -cE '^\s*fma\.' "$code/80")" = "$(grep -cE '^\s*fma\.' "$code/75")" || { echo "$kernel: fused"; return 1; }
  sed -i 's/^\.version .*/.version 8.4/' "$code/75" "$code/80"
  for architecture in 75 80 89 90; do
    "$build/older/nvidia/cuda_nvcc/bin/ptxas" -arch="sm_$architecture" -v -o /dev/null \
      "$code/$((architecture < 80 ? 75 : 80))" >>"$code/report" 2>&1 || { cat "$code/report"; return 1; }
  done
  ! grep -E 'error|[1-9][0-9]* bytes (stack|spill)' "$code/report" || { echo "$kernel"; return 1; }
}
export -f older
export build
printf '%s\0' "${objects[@]}" | xargs -0 -n 1 -P 2 bash -c 'older "$1"' -
cat "$build"/older/*/report | grep -c "Compiling entry" | sed 's/$/ kernels from the assembler of CUDA 12.4/'

# The messages about a driver, from the real runtime with a fake driver's library (tests/native).
mkdir -p "$build/driver"
gcc -shared -fPIC -o "$build/driver/libcuda.so.1" tests/native/fake_driver.c
nvcc -std=c++17 -cudart static -o "$build/driver/answer" tests/native/driver.cpp "$(find "$build" -name device.cu.o)"
says() { # VERSION RESULT EXPECTED
  local said
  said=$(LD_LIBRARY_PATH="$build/driver" FAKE_DRIVER_VERSION=$1 FAKE_DRIVER_RESULT=$2 "$build/driver/answer")
  grep -q "0 devices" <<<"$said" || { echo "$said"; exit 1; }
  test "$(grep -c "$3" <<<"$said")" = 2 || { printf 'driver %s, result %s: expected "%s", got\n%s\n' "$1" "$2" "$3" "$said"; exit 1; }
}
says 0 0 "there is no NVIDIA driver here"
says 11040 0 "the driver supports CUDA 11.4 and this build needs"
says 99000 100 "the driver sees no card: .*CUDA_VISIBLE_DEVICES.*MIG"
says 99000 803 "restart the machine"
says 99000 3 "forked after its parent used CUDA"
says 99000 999 "cudaErrorUnknown"
echo "six answers of a driver"
