#!/usr/bin/env bash
# Compares three kernels with the machine's own streams and with torch, to detect a loss of a third (see
# bench/speed.py). It tries up to three times. It measures the installed package and takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
for try in 1 2 3; do
  python bench/speed.py && exit 0
  echo "try $try of 3"
done
exit 1
