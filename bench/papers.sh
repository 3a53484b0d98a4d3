#!/usr/bin/env bash
# The papers' own sizes in one command: hours per table first, then every table whose data is there. FADAS Tables 2 to 5,
# ACE Figure 2, FedEcho Table 2 and AsyncFedED's figures, in bf16 and channels_last on a GPU. Run it again to go on.
#   bench/papers.sh DATA_FOLDER [TABLE...]      OUT=runs/papers JOBS=4 SEEDS=3; PLAN=1 prints the hours and stops
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder with the data: see docs/data.md}
shift
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
run=(--run)
[ -n "${PLAN:-}" ] && run=()
exec python3 bench/papers.py --data-dir "$folder" --out "${OUT:-runs/papers}" -j "${JOBS:-4}" --seeds "${SEEDS:-3}" "${run[@]}" "$@"
