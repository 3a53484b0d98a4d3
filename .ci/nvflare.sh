#!/usr/bin/env bash
# NVIDIA FLARE for real, in an environment of its own: install fastagg[nvflare] from this checkout, run the tests that need
# FLARE, its simulator's jobs among them. Needs Python, a C++ compiler and the package index; takes WORKDIR for its files,
# and a wheel of this checkout or, without one, builds it.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1 package=${2:-.}
mkdir -p "$work"
python3 -m venv "$work/venv"
# shellcheck disable=SC1091
. "$work/venv/bin/activate"
export PIP_DISABLE_PIP_VERSION_CHECK=1 MPLBACKEND=Agg
# torch first: FLARE asks for none, and this line's version is the one with which the rest was tested.
pip install -q "$(grep '^torch==' constraints.txt)"
pip install -q -c constraints.txt "$package[nvflare,test]"
# From another folder: the package that is tested is the one that was installed.
here=$(pwd)
cd "$work"
python -c 'import fastagg, sys; assert "site-packages" in fastagg.__file__, fastagg.__file__'
pytest -m "" -q -p no:cacheprovider --rootdir "$here" -c "$here/pyproject.toml" "$here/tests/integrations/test_docs.py" \
  "$here"/tests/integrations/test_nvflare*.py -rs
