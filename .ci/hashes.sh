#!/usr/bin/env bash
# Writes the committed hashes anew: after an addition, or after a change that is meant to change bits.
set -euo pipefail
cd "$(dirname "$0")/.."
python tests/test_same_bits.py --write
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S . -B "$build" -DFASTAGG_MODULE=OFF -DFASTAGG_CUDA=OFF -DFASTAGG_TRACE=ON >"$build/log" || { cat "$build/log"; exit 1; }
cmake --build "$build" -j 2 --target fastagg_trace >"$build/log" 2>&1 || { cat "$build/log"; exit 1; }
"$build/fastagg_trace" tests/native/trace.txt --write
git diff --stat -- tests/hashes.json tests/native/trace.txt
