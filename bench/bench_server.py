"""`Server.receive` per arrival: at small d its overhead, at large d its bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import SIZES
from servers import ARRIVALS, CANDIDATES, Arrival, arrivals

SMALL = [1_000, 100_000]


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("arrival", ARRIVALS, ids=lambda arrival: arrival.name)
@pytest.mark.parametrize("size", sorted({*SMALL, *SIZES}))
def bench_receive(
    arrival: Arrival, candidate: str, size: int, measured: Callable[..., Any], report: Callable[..., None]
) -> None:
    rows = measured(arrivals, arrival, size)
    if candidate not in rows:
        pytest.skip("too few parameters for 62 layers")
    report(rows, candidate)
