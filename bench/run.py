"""Measure, print Markdown, keep the figures: python bench/run.py optimizers --sizes 11200000 110000000

`python bench/run.py sweep --threads 1 2` makes the curves of docs/performance.md: time and GB/s against d.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

# A checkout that was not installed: its own package, not another one's.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import machine
import records
import suites
import tables
import torch
from records import Row

import fastagg

# The curves: whole steps, the shortest pass, and the arrival that does the most arithmetic; with the peers that matter.
SWEEP = ("amsgrad", "accumulate", "ace int8")
SWEEP_SIZES = (10_000, 31_600, 100_000, 316_000, 1_000_000, 3_160_000, 10_000_000, 31_600_000, 100_000_000,
               316_000_000, 1_000_000_000)  # fmt: skip
SWEEP_ONLY = ("fused", "torch add_", "torch.compile", "plain C++")
# A sample of milliseconds sees one state of the core's clock and of the neighbours: short steps need more of them.
ROUNDS, SHORT_ROUNDS, SHORT = 15, 31, 1_000_000


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 when everything was measured, 1 when candidates disagreed somewhere."""
    given = _parser().parse_args(arguments)
    rows: list[Row] = []
    wrong: list[str] = []
    about = machine.describe()
    for threads in given.threads or [fastagg.get_num_threads()]:
        fastagg.set_num_threads(threads)
        torch.set_num_threads(threads)
        for name in given.suite:
            rows += _measured(name, given, wrong)
    print(tables.markdown(rows, about))
    if not given.no_save:
        path = records.save(rows, about, f"python bench/run.py {shlex.join(arguments or sys.argv[1:])}", given.out)
        print(f"Kept in {path}", file=sys.stderr)
    for line in wrong:
        print(f"wrong result, not timed: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure fastagg against its peers.")
    known = ["sweep", *suites.SUITES, *_cases()]
    parser.add_argument("suite", nargs="*", default=["optimizers"], choices=known, metavar="suite",
                        help=f"sweep, {', '.join(suites.SUITES)}, or one operation of them")  # fmt: skip
    parser.add_argument("--sizes", type=_count, nargs="+", help="numbers of parameters, such as 11200000 or 1e6")
    parser.add_argument("--rounds", type=int, help=f"samples of each candidate (default: {ROUNDS}, and {SHORT_ROUNDS} "
                        f"below {SHORT:,} parameters)")  # fmt: skip
    parser.add_argument("--threads", type=int, nargs="+", help="of fastagg and of torch, one after the other")
    parser.add_argument("--only", nargs="+", help="peers whose names contain one of these words")
    parser.add_argument("--out", type=Path, default=records.RESULTS, help="folder for the figures")
    parser.add_argument("--no-save", action="store_true", help="print only")
    return parser


def _measured(name: str, given: argparse.Namespace, wrong: list[str]) -> list[Row]:
    wanted: list[tuple[str, object, tuple[int, ...]]] = []
    only = tuple(given.only or [""])
    cases = _cases()
    if name == "sweep":
        only = tuple(given.only or SWEEP_ONLY)
        wanted = [(*cases[operation], SWEEP_SIZES) for operation in SWEEP]
    elif name in suites.SUITES:
        wanted = [(name, case, suites.SUITES[name].sizes) for case in suites.SUITES[name].cases]
    else:
        suite, case = cases[name]
        wanted = [(suite, case, suites.SUITES[suite].sizes)]
    rows: list[Row] = []
    for suite, case, sizes in wanted:
        for size in sizes if sizes == suites.OWN else given.sizes or sizes:
            print(f"{suites.label(case)}, d = {size:,}, {fastagg.get_num_threads()} threads", file=sys.stderr)
            try:
                rows += suites.run(suite, case, size, given.rounds or _rounds(size), only)
            except AssertionError as error:  # an hour of other figures must not be lost with it
                wrong.append(f"{suites.label(case)}, d = {size:,}: {error}")
    return rows


def _rounds(size: int) -> int:
    return SHORT_ROUNDS if 0 < size < SHORT else ROUNDS


def _cases() -> dict[str, tuple[str, object]]:
    return {suites.label(case): (name, case) for name, suite in suites.SUITES.items() for case in suite.cases}


def _count(text: str) -> int:
    value = float(text)
    if not value.is_integer() or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text}")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
