"""Measures cases together with their peers: python bench/run.py arrival kernel --within 6

It prints a table for each case and size. It stores a row for each candidate in results/, one file per processor.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed: its own package

import results
import tables
import timing
import torch
from cases import CASES
from measure import measure
from problem import Case

import fastagg

GROUPS = tuple(dict.fromkeys(case.group for case in CASES.values()))


def main(arguments: list[str] | None = None) -> int:
    """The command line. Return 0 if everything was measured, 1 if candidates disagreed, 2 if results may not be
    stored."""
    parser = _parser()
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no card here")
    if given.impatient:
        timing.do_not_wait()
    keep = not (given.no_save or given.impatient)
    if keep and given.out is None and not (name := results.commit()).isalnum():
        print(
            f"error: this tree is {name}: results of a changed tree are not kept. Commit first, or name another file "
            "with --out, or --no-save",
            file=sys.stderr,
        )
        return 2
    wrong: list[str] = []
    for threads in [0] if device.type == "cuda" else given.threads or [fastagg.get_num_threads()]:
        if threads:
            fastagg.set_num_threads(threads)
            torch.set_num_threads(threads)
        for case in wanted(given.cases):
            if device.type not in case.devices:
                continue
            for size in case.sizes if len(case.sizes) == 1 else given.sizes or case.sizes:
                try:
                    found = measure(
                        case, size, rounds=given.rounds, only=given.only, device=device, within=given.within
                    )
                except AssertionError as error:  # it must not discard an hour of other figures
                    wrong.append(f"{case.name}, d = {size:,}: {error}")
                    continue
                print(tables.measured(case, size, threads, found), flush=True)
                if keep and found.rows:
                    results.save(found.rows, given.out)
    for line in wrong:
        print(f"wrong result, not timed: {line}", file=sys.stderr)
    return 1 if wrong else 0


def wanted(names: list[str]) -> list[Case]:
    """Return cases by name or by group, in the requested order."""
    found = {}
    for name in names:
        found.update({one: case for one, case in CASES.items() if name in (one, case.group)})
    return list(found.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench/run.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("cases", nargs="*", default=["arrival", "kernel"], choices=[*GROUPS, *CASES], metavar="case",
                        help=f"groups ({', '.join(GROUPS)}) or cases: {', '.join(CASES)}")  # fmt: skip
    parser.add_argument("--sizes", type=_count, nargs="+", help="numbers of parameters, such as 11200000 or 1e6")
    parser.add_argument("--threads", type=_count, nargs="+", help="of fastagg and of torch, one after the other")
    parser.add_argument("--rounds", type=_count, help="samples of each (default: 31 below a million parameters, 15)")
    parser.add_argument("--within", type=float, default=math.inf, metavar="SECONDS",
                        help="for each case and size: no round begins later, once there are five")  # fmt: skip
    parser.add_argument("--only", nargs="+", default=[""], help="peers whose names contain one of these words")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--impatient", action="store_true", help="do not wait for a quiet machine, and keep nothing")
    parser.add_argument("--no-save", action="store_true", help="print only")
    parser.add_argument("--out", type=Path, help="a file for the rows (default: the processor's, in results/)")
    return parser


def _count(text: str) -> int:
    value = float(text)
    if not value.is_integer() or value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text}")
    return int(value)


if __name__ == "__main__":
    sys.exit(main())
