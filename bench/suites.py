"""The capabilities: what is measured in each, on which sizes, by which function; for run.py and bench_*.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import clients
import distillation
import losses
import messages
import servers
import simulations
from records import Row
from suite import SUITES as OPERATIONS
from suite import measure

BARS = (11_200_000, 110_000_000)
OWN = (0,)  # the case has its own size


@dataclass(frozen=True)
class Suite:
    """One capability.

    Attributes:
        cases: operations, arrivals, shapes: what ``measure(case, size, rounds)`` takes.
        candidates: names of the rows that a case gives, its roofline's not among them.
        sizes: d of a full report.
        small: d of a quick one.
    """

    cases: Sequence[Any]
    measure: Callable[..., list[Row]]
    candidates: Callable[[Any], Sequence[str]]
    sizes: tuple[int, ...] = BARS
    small: tuple[int, ...] = (11_200_000,)


SUITES: dict[str, Suite] = {
    **{
        name: Suite(operations, measure, lambda operation: [c.name for c in operation.candidates()])
        for name, operations in OPERATIONS.items()
    },
    "server": Suite(
        servers.ARRIVALS, servers.arrivals, lambda _: list(servers.CANDIDATES), (1_000, 100_000, *BARS),
        (1_000, 100_000, 11_200_000),
    ),
    "clients": Suite(
        clients.POPULATIONS, clients.arrivals, lambda _: clients.CANDIDATES, (1_000_000,), (200_000,)
    ),
    "distillation": Suite(distillation.SHAPES, losses.losses, lambda _: losses.CANDIDATES, OWN, OWN),
    "simulator": Suite(simulations.RECIPES, simulations.simulations, lambda _: simulations.CANDIDATES, OWN, OWN),
    "integrations": Suite(("messages",), messages.messages, lambda _: list(messages.CANDIDATES)),
}  # fmt: skip


def label(case: Any) -> str:
    """How a case is called in test ids and on the command line."""
    return "x".join(map(str, case)) if isinstance(case, tuple) else str(getattr(case, "name", case))


def run(name: str, case: Any, size: int, rounds: int, only: tuple[str, ...] = ("",)) -> list[Row]:
    """One case at one size; ``only`` narrows the peers of an operation (other suites are measured whole)."""
    function = SUITES[name].measure
    narrowed = partial(function, only=only) if name in OPERATIONS else function
    return narrowed(case, size, rounds)
