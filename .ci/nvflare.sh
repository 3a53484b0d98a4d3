#!/usr/bin/env bash
# Tests real NVIDIA FLARE in its own environment: installs fastagg[nvflare] from this checkout and runs the tests that
# need FLARE, including jobs in its simulator. Needs Python, a C++ compiler and the package index. Takes WORKDIR for its
# files, and a wheel of this checkout. Without a wheel it builds one.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1 package=${2:-.}
mkdir -p "$work"
python3 -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
export PIP_DISABLE_PIP_VERSION_CHECK=1 MPLBACKEND=Agg
# torch comes first: FLARE does not require a version, and this line installs the version used in the other tests.
pip install -q "$(grep '^torch==' constraints.txt)"
pip install -q -c constraints.txt "$package[nvflare,test]"
# Run from another folder, so that the installed package is tested.
here=$(pwd)
cd "$work"
python -c 'import fastagg, sys; assert "site-packages" in fastagg.__file__, fastagg.__file__'
tests() {
  pytest -m "" -q -o cache_dir="$work/cache" --rootdir "$here" -c "$here/pyproject.toml" -rs --durations=8 "$@" \
    "$here/tests/integrations/test_docs.py" "$here"/tests/integrations/test_nvflare*.py
}
# These tests use processes, ports and deadlines on a machine that may be busy, so one that fails is tried again.
tests || tests --last-failed --last-failed-no-failures none
