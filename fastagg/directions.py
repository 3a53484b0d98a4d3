"""Directions: how arriving updates become the vector D that the optimizer steps along.

Each direction is a frozen setting and, once a server starts it, a small state. ``arrive`` either keeps the update
for later or hands one fused kernel call to ``apply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from fastagg import _checks, memory, ops
from fastagg.pieces import Pieces


class Arrival(NamedTuple):
    """An update that passed every check."""

    update: Pieces
    version: int  # the version it was trained from
    gain: float  # clipping factor
    weight: float  # staleness weight times sample weight
    share: float  # its part of a mean's denominator: its sample weight, or 1
    base: Tensor | None  # the model it was trained from, if the direction asked for it


class Apply(Protocol):
    """Runs the optimizer on a direction; the keywords are those of :func:`fastagg.ops.step_`."""

    def __call__(self, update: Pieces, versions: Sequence[int], **direction: Any) -> float: ...


class DirectionState(Protocol):
    """What a running server holds of its direction."""

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        """Take one update; the step size if the model changed, else None."""

    def nbytes(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Direction:
    """Base of the directions.

    Attributes:
        needs_base: whether updates are combined with the version they were trained from, which is then kept while
            any client holds it (:class:`fastagg.versions.VersionStore`).
    """

    needs_base: ClassVar[bool] = False

    def start(self, size: int, device: torch.device) -> DirectionState:
        """The state of a server with ``size`` parameters on ``device``."""
        raise NotImplementedError(f"{type(self).__name__} is no direction of its own")


@dataclass(frozen=True)
class Single(Direction):
    """Every update is a step: ``D = Delta_i``."""

    def start(self, size: int, device: torch.device) -> DirectionState:
        return _SingleState()


@dataclass(frozen=True)
class Mixing(Direction):
    """Every update is a step towards the client's model: ``D = x_i^K - x_t`` with ``x_i^K = x_s + Delta_i``.

    With SGD and ``lr = alpha`` this is FedAsync's ``x <- (1-a_t)*x + a_t*x_i^K`` (paper 003, Eq. 40).
    """

    needs_base: ClassVar[bool] = True

    def start(self, size: int, device: torch.device) -> DirectionState:
        return _SingleState()


@dataclass(frozen=True)
class Buffer(Direction):
    """The mean of ``size`` updates: ``D = sum(Delta_i)/M`` (FedBuff; FADAS, paper 000, Algorithm 1).

    Args:
        size: M, updates per step, >= 1.
    """

    size: int = 10

    def __post_init__(self) -> None:
        _checks.whole("buffer_size", self.size, least=1)

    def start(self, size: int, device: torch.device) -> DirectionState:
        return _BufferState(self.size, size, device)


class _SingleState:
    """Nothing to keep between updates."""

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        weight = arrival.weight / arrival.share
        lr = apply(arrival.update, [arrival.version], gain=arrival.gain, weight=weight, base=arrival.base)
        return lr * weight

    def nbytes(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


@dataclass
class _BufferState:
    """The sum of the updates so far; the last of a round never enters it, it goes straight into the step."""

    capacity: int
    size: int
    device: torch.device
    acc: Tensor | None = None
    total: float = 0.0  # of the shares in acc
    versions: list[int] = field(default_factory=list)

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        first = not self.versions
        if len(self.versions) + 1 < self.capacity:
            if self.acc is None:
                self.acc = memory.empty(self.size, self.device)
            ops.accumulate_(self.acc, arrival.update, arrival.gain * arrival.weight, fresh=first)
            self.versions.append(arrival.version)
            self.total += arrival.share
            return None
        total = self.total + arrival.share
        versions = [*self.versions, arrival.version]
        if first:  # M = 1: nothing to add to
            step = apply(arrival.update, versions, gain=arrival.gain, weight=arrival.weight / total)
        else:
            step = apply(
                arrival.update,
                versions,
                gain=arrival.gain,
                weight=arrival.weight,
                acc=self.acc,
                scale=1.0 / total,
            )
        self.versions, self.total = [], 0.0
        return step

    def nbytes(self) -> int:
        return 0 if self.acc is None else self.acc.numel() * self.acc.element_size()

    def state_dict(self) -> dict[str, Any]:
        acc = self.acc if self.versions else None  # between rounds it holds nothing
        return {"acc": acc, "total": self.total, "versions": list(self.versions)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["acc"] is not None:
            acc = memory.empty(self.size, self.device)
            self.acc = acc.copy_(state["acc"])
        self.total, self.versions = float(state["total"]), list(state["versions"])
