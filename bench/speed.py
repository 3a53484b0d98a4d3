"""Three ratios to streaming against a floor: python bench/speed.py

A floor is about two thirds of what the report's processors reach. On one thread, and of each the best of many calls
that take turns: other processes only ever take time away, most from those who wait for a second core.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a checkout that was not installed: its own package

import timing
import torch
from cases import CASES
from measure import build
from problem import OURS, Problem, huge
from roofline import streams

import fastagg

SIZE = 8_000_000  # parameters: beyond the caches of either, and a call is some milliseconds
ROUNDS = 40
# Of the best copy or triad; of reading for distances, which writes nothing.
FLOORS = {"accumulate": 0.65, "ace int8": 0.35, "distances": 0.5}


def main() -> int:
    """Print a line for each; 1 when one is below its floor."""
    timing.do_not_wait()
    fastagg.set_num_threads(1)
    torch.set_num_threads(1)
    low = [name for name, floor in FLOORS.items() if not _holds(name, floor)]
    return int(bool(low))


def _holds(name: str, floor: float) -> bool:
    share = measured(name)
    print(f"{name}: {share:.0%} of streaming, at least {floor:.0%}{'' if share >= floor else ': TOO LITTLE'}")
    return share >= floor


def measured(name: str, size: int = SIZE) -> float:
    """A case's best speed over the best stream's."""
    case, problem = CASES[name], Problem(size)
    vars(problem)["update"] = problem.vector("update", huge)  # as the streams' vectors: no pages are compared
    built, _ = build(case, problem, case.candidates()[:1])
    kinds = ("read",) if case.reads else ("copy", "triad")
    beside = {key: one for key, one in streams(problem).items() if one.kind in kinds}
    runs = {OURS: built[OURS].run} | {key: one.run for key, one in beside.items()}
    found = timing.interleave(runs, rounds=ROUNDS, least=0.0)
    speed = max(one.counted / min(found.samples(key)) for key, one in beside.items())
    return case.bytes / min(found.samples(OURS)) / speed


if __name__ == "__main__":
    sys.exit(main())
