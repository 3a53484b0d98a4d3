"""Every case at a small size, as pytest-benchmark shows it: pytest bench/ --benchmark-only

Each (case, size) is measured once with all candidates taking turns, and each candidate is reported as a benchmark.
torch.compile is left out unless FASTAGG_BENCH_COMPILE=1, because it takes minutes before anything is timed.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest
import timing
from cases import CASES
from measure import Found, measure

# FASTAGG_BENCH_SIZES=1000,100000 FASTAGG_BENCH_ROUNDS=31 sets other sizes and rounds.
SIZES = [int(size) for size in os.environ.get("FASTAGG_BENCH_SIZES", "").split(",") if size]
ROUNDS = int(os.environ.get("FASTAGG_BENCH_ROUNDS", "5"))
WITHOUT = () if os.environ.get("FASTAGG_BENCH_COMPILE") else ("torch.compile",)
timing.SETTLE, timing.PATIENCE = 0.005, 0.0  # a quick measurement within two minutes; run.py waits for a quiet machine
SMALL, OWN = 1_000_000, 1_000_000  # the largest of a case's own sizes that is still quick
QUICK = [
    (name, case.sizes[0] if len(case.sizes) == 1 else size, one.name)
    for name, case in CASES.items()
    if "cpu" in case.devices and (len(case.sizes) > 1 or case.sizes[0] <= OWN) and not name.startswith("simulator, C")
    for size in SIZES or [SMALL if case.group == "kernel" else min(case.sizes)]
    for one in case.candidates()
    if "cpu" in one.devices and not any(word in one.name for word in WITHOUT)
]


@cache
def once(name: str, size: int) -> Found:
    """Return the rows of one interleaved run. It is measured at the first call."""
    return measure(CASES[name], size, rounds=ROUNDS, without=WITHOUT, within=3.0)


class Replay:
    """A clock for pytest-benchmark that shows what was measured before.

    The fixture times one function after the other, but these samples were taken in turns with all others.
    """

    __name__ = "interleaved"
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def show(self, seconds: float) -> None:
        self.now = seconds


REPLAY = Replay()


@pytest.mark.benchmark(timer=REPLAY)
@pytest.mark.parametrize(("case", "size", "candidate"), QUICK, ids=lambda one: str(one))
def bench_case(case: str, size: int, candidate: str, benchmark: Any) -> None:
    found = once(case, size)
    if candidate in found.skipped:
        pytest.skip(found.skipped[candidate])
    row = next(row for row in found.rows if (row.case, row.candidate, row.unit) == (case, candidate, "s"))
    benchmark.group = f"{case}, d = {size:,}"
    benchmark.extra_info.update({key: value for key, value in vars(row).items() if value is not None})
    samples = iter(found.samples[candidate])
    benchmark.pedantic(lambda: REPLAY.show(next(samples, 0.0)), setup=lambda: REPLAY.show(0.0),
                       rounds=len(found.samples[candidate]))  # fmt: skip
