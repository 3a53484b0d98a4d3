"""Each (operation, size) is measured once, interleaved, and its candidates are reported as one benchmark each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# A checkout that was not installed: its own package.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import machine
from suite import Row

# For a quick look or a larger machine: FASTAGG_BENCH_SIZES=1000,100000 FASTAGG_BENCH_ROUNDS=31
SIZES = [int(size) for size in os.environ.get("FASTAGG_BENCH_SIZES", "11200000,110000000").split(",")]
ROUNDS = int(os.environ.get("FASTAGG_BENCH_ROUNDS", "15"))


@pytest.fixture(scope="session")
def about() -> dict[str, Any]:
    """The machine and the software."""
    return machine.describe()


@pytest.fixture(scope="session")
def measured() -> Callable[..., dict[str, Row]]:
    """``measured(function, thing, size)``: the rows of one interleaved run by candidate, measured at the first call."""

    @cache
    def once(function: Callable[..., list[Row]], thing: Any, size: int) -> dict[str, Row]:
        return {row.candidate: row for row in function(thing, size, ROUNDS)}

    return once


@pytest.fixture
def report(benchmark: Any, about: dict[str, Any]) -> Callable[[dict[str, Row], str], None]:
    """``report(rows, candidate)``: hand a candidate's samples to pytest-benchmark, with everything else we know."""

    def give(rows: dict[str, Row], candidate: str) -> None:
        row = rows[candidate]
        if row.skipped:
            pytest.skip(row.skipped)
        benchmark.group = f"{row.operation}, d = {row.size:,}"
        ratios = {name: other.slower[1] / row.slower[1] for name, other in rows.items() if other.slower and row.slower}
        benchmark.extra_info.update({key: value for key, value in row.data().items() if key != "samples"})
        benchmark.extra_info.update(machine=about, time_of_others_over_this=ratios)
        # pytest-benchmark times one function after the other; these samples were taken in turns with all the others'.
        # Its fixture has no public way to take samples, so this is what its own `pedantic` does inside.
        benchmark._mode = "interleaved"
        stats = benchmark._make_stats(1)
        for seconds in row.samples:
            stats.update(seconds)

    return give
