"""Checks three kernels against two floors each: python bench/speed.py

A kernel is too slow if it is below both floors: its share of streaming, and torch's time over its own. If a neighbour
slows the cores down, streaming still works; if it uses the memory's bandwidth, computing still works. torch suffers
from both as fastagg does. A floor is about two thirds of the values on the report's processors. It uses one thread, and
the best of many rounds: a disturbance only makes a round slower. Disturbed rounds are repeated, so that there are
enough others.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import checkout  # noqa: F401
import torch
from cases import CASES
from measure import build
from problem import OURS, Problem, huge
from roofline import streams

import fastagg
from fastagg import timing

SIZE = 8_000_000  # parameters: beyond the caches, and a call takes some milliseconds
ROUNDS = 40
CARE = timing.Care(settle=0.002, patience=0.0)  # a neighbour in CI stays for minutes: nobody waits for its end


class Floor(NamedTuple):
    """The least share of the memory's speed, as in a report, and the least ratio of a peer's time to ours."""

    share: float
    peer: str
    ratio: float


FLOORS = {
    "accumulate": Floor(0.65, "torch add_", 0.7),
    "ace int8": Floor(0.35, "torch eager in place", 4.0),
    "distances": Floor(0.5, "torch eager in place", 0.7),
}


def main() -> int:
    """Print a line for each kernel. Return 1 if one is below both of its floors."""
    fastagg.set_num_threads(1)
    torch.set_num_threads(1)
    low = [name for name, floor in FLOORS.items() if not _holds(name, floor)]
    return int(bool(low))


def _holds(name: str, floor: Floor) -> bool:
    share, ratio = measured(name)
    holds = share >= floor.share or ratio >= floor.ratio
    print(
        f"{name}: {share:.0%} of streaming, at least {floor.share:.0%}; {floor.peer} takes {ratio:.2f} times as long, "
        f"at least {floor.ratio:.2f}{'' if holds else ': TOO LITTLE'}"
    )
    return holds


def measured(name: str, size: int = SIZE, rounds: int = ROUNDS) -> tuple[float, float]:
    """Return a case's best speed over the best stream's, and the peer's best time over the case's."""
    case, problem, peer = CASES[name], Problem(size), FLOORS[name].peer
    # in the same memory as the streams' vectors, so that pages make no difference
    vars(problem)["update"] = problem.vector("update", huge)
    built, _ = build(case, problem, [one for one in case.candidates() if one.name in (OURS, peer)])
    beside = {key: one for key, one in streams(problem).items() if (one.kind == "read") == case.reads}
    runs = {key: built[key].run for key in (OURS, peer)} | {key: one.run for key, one in beside.items()}
    found = timing.interleave(runs, rounds=rounds, least=0.0, care=CARE)
    ours, theirs = min(found.samples(OURS)), min(found.samples(peer))
    speed = max(one.counted / min(found.samples(key)) for key, one in beside.items())
    return case.bytes / ours / speed, theirs / ours


if __name__ == "__main__":
    sys.exit(main())
