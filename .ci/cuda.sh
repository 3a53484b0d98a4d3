#!/usr/bin/env bash
# Compile the CUDA kernels for every architecture and read the compiler's own report: no kernel may spill registers or
# use local memory.
set -euo pipefail
build=$1
cmake -S . -B "$build" -G Ninja -DFASTAGG_DEVELOPER=ON -DPython_EXECUTABLE="$(command -v python)" \
  -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" >"$build.log" || { cat "$build.log"; exit 1; }
cmake --build "$build" --target fastagg_cuda >>"$build.log" 2>&1 || { cat "$build.log"; exit 1; }
python - "$build.log" <<'PY'
import re
import sys

report = open(sys.argv[1]).read()
kernels = re.findall(r"Compiling entry function '(\S+)' for '(sm_\d+)'", report)
frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
architectures = sorted({arch for _, arch in kernels})
assert {"sm_80", "sm_90", "sm_100"} <= set(architectures), f"compiled for {architectures} only"
assert kernels and len(frames) >= len(kernels), f"{len(kernels)} kernels, {len(frames)} reports"
bad = [frame for frame in frames if frame != ("0", "0", "0")]
assert not bad, f"{len(bad)} kernels spill or use local memory: {bad}"
print(f"{len(kernels)} kernels for {', '.join(architectures)}: no spills, no local memory")
PY

# What the assembler made of them: 128-bit accesses in the kernels that stream vectors.
pip install -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm -c constraints.txt
tools=$(dirname "$(find "$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')" -name nvdisasm | head -n 1)")
find "$build" -name '*.cu.o' -print0 | PATH="$tools:$PATH" xargs -0 python .ci/sass.py >"$build.sass" || { grep -B1 FAULT "$build.sass"; exit 1; }
tail -n 1 "$build.sass"
