#!/usr/bin/env bash
# Builds the documentation as a site, with warnings as errors, and runs the notebook from its first cell to its last.
# Takes WORKDIR. Needs fastagg[docs,sim] installed. It uses no network; if user namespaces are allowed, it is built
# without one.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$1
mkdir -p "$work"
offline=()
if unshare --user --map-root-user --net true 2>/dev/null; then offline=(unshare --user --map-root-user --net); fi
"${offline[@]}" sphinx-build -q -W --keep-going -b html docs "$work/site"
echo "the site: $(find "$work/site" -name '*.html' | wc -l) pages"
here=$(pwd)
(cd "$work" && python "$here/.ci/notebook.py" "$here/examples/first-steps.ipynb")
