"""A whole optimizer step on a given direction, against torch.optim, eager and compiled torch, and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conftest import SIZES
from suite import OPTIMIZERS, Operation, measure


@pytest.mark.parametrize(
    ("operation", "candidate"),
    [pytest.param(op, c.name, id=f"{op.name}-{c.name}") for op in OPTIMIZERS for c in op.candidates()],
)
@pytest.mark.parametrize("size", SIZES)
def bench_step(
    operation: Operation, candidate: str, size: int, measured: Callable[..., Any], report: Callable[..., None]
) -> None:
    report(measured(measure, operation, size), candidate)
