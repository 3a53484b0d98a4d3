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
import suites
from records import Row

Measured = Callable[[str, Any, int], dict[str, Row]]
Report = Callable[[dict[str, Row], str], None]

# For a quick look or a larger machine: FASTAGG_BENCH_SIZES=1000,100000 FASTAGG_BENCH_ROUNDS=31
SIZES = [int(size) for size in os.environ.get("FASTAGG_BENCH_SIZES", "").split(",") if size]
ROUNDS = int(os.environ.get("FASTAGG_BENCH_ROUNDS", "7"))


def benchmark(suite: str) -> Callable[..., None]:
    """One benchmark for every candidate of every case and size of a suite."""
    about = suites.SUITES[suite]
    sizes = about.small if about.sizes == suites.OWN else SIZES or about.small
    cases = [
        pytest.param(case, candidate, size, id=f"{suites.label(case)}-{size}-{candidate}")
        for case in about.cases for size in sizes for candidate in about.candidates(case)
    ]  # fmt: skip

    @pytest.mark.parametrize(("case", "candidate", "size"), cases)
    def bench(case: Any, candidate: str, size: int, measured: Measured, report: Report) -> None:
        report(measured(suite, case, size), candidate)

    return bench


@pytest.fixture(scope="session")
def about() -> dict[str, Any]:
    """The machine and the software."""
    return machine.describe()


@pytest.fixture(scope="session")
def measured() -> Measured:
    """``measured(suite, case, size)``: the rows of one interleaved run by candidate, measured at the first call."""

    @cache
    def once(suite: str, case: Any, size: int) -> dict[str, Row]:
        return {row.candidate: row for row in suites.run(suite, case, size, ROUNDS)}

    return once


@pytest.fixture
def report(benchmark: Any, about: dict[str, Any]) -> Report:
    """``report(rows, candidate)``: hand a candidate's samples to pytest-benchmark, with everything else we know."""

    def give(rows: dict[str, Row], candidate: str) -> None:
        if candidate not in rows:
            pytest.skip("not at this size")
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
