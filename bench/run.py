"""Measure, print a Markdown report, keep the figures: python bench/run.py optimizers --sizes 11200000 110000000"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

# A checkout that was not installed: its own package, not another one's.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import machine
import report
import torch
from servers import ARRIVALS, arrivals
from suite import CACHES, OPTIMIZERS, UPDATES, Row, measure

import fastagg

BARS = (11_200_000, 110_000_000)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 when everything was measured."""
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure fastagg against its peers.")
    parser.add_argument(
        "suite", nargs="*", default=["optimizers"], help="optimizers, updates, caches, server, or an operation"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(BARS), help="numbers of parameters")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each candidate")
    parser.add_argument("--threads", type=int, help="of fastagg and of torch; by default all cores")
    parser.add_argument("--only", nargs="+", default=[""], help="candidates whose names contain one of these words")
    parser.add_argument("--no-save", action="store_true", help="print only")
    given = parser.parse_args(arguments)
    if given.threads:
        fastagg.set_num_threads(given.threads)
        torch.set_num_threads(given.threads)
    operations = {operation.name: operation for operation in (*OPTIMIZERS, *UPDATES, *CACHES)}
    suites = {"optimizers": list(OPTIMIZERS), "updates": list(UPDATES), "caches": list(CACHES), "server": []}
    rows: list[Row] = []
    about = machine.describe()
    for name in given.suite:
        if name not in suites and name not in operations:
            parser.error(f"unknown suite {name!r}; known: {', '.join([*suites, *operations])}")
    for name in given.suite:
        for size in given.sizes:
            for operation in suites.get(name) or ([operations[name]] if name in operations else []):
                rows += measure(operation, size, given.rounds, tuple(given.only))
            if name == "server":
                for arrival in ARRIVALS:
                    rows += arrivals(arrival, size, given.rounds)
    print(report.markdown(rows, about))
    if not given.no_save:
        path = report.save(rows, about, " ".join(["bench/run.py", *(arguments or sys.argv[1:])]))
        print(f"Kept in {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
