#!/usr/bin/env bash
# Installs nvcc and the CUDA runtime in FOLDER, for images without the CUDA toolkit: tools/nvcc.sh FOLDER. Needs pip.
# Then put FOLDER/bin on PATH. It installs CUDA 13.0, so that every driver of CUDA 13 can load the compiled kernels.
set -euo pipefail
folder=$1
python3 -m pip install -q --target "$folder/packages" "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" \
  "nvidia-nvvm==13.0.*" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cccl==13.0.*"
mv "$folder"/packages/nvidia/cu13/* "$folder"
test -e "$folder/lib64" || ln -s lib "$folder/lib64" # where nvcc looks for the runtime
ln -sf libcudart.so.13 "$folder/lib/libcudart.so" # CMake looks for this file, but links the static library
"$folder/bin/nvcc" --version
