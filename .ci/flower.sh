#!/usr/bin/env bash
# Tests real Flower in its own environment: its processes on loopback and its simulation engine run the example app.
# Takes WORKDIR for its files, and a wheel of this checkout. Without a wheel it builds one.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1 package=${2:-.}
mkdir -p "$work"
python3 -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
pip install -q -c constraints.txt "$package[flower,test,tensorboard,mlflow,wandb]" "flwr[simulation]==1.41.0" peft
printf 'installed in %ss\n' "$SECONDS"
tests() {
  pytest -m "" -q -ra -o cache_dir="$work/cache" --durations=8 "$@" tests/integrations/test_require.py \
    tests/integrations/test_docs.py tests/integrations/test_trackers.py tests/integrations/test_flower*.py
}
# These tests use processes, ports and deadlines on a machine that may be busy, so one that fails is tried again.
tests || tests --last-failed --last-failed-no-failures none
