"""The mean of several updates is a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, memory, ops
from fastagg.directions.base import Apply, Arrival, Direction, DirectionState
from fastagg.errors import UnknownVersion
from fastagg.pieces import Pieces


@dataclass(frozen=True)
class Buffer(Direction):
    """``D = sum(Delta_i)/M`` over every M updates (FedBuff; FADAS, paper 000, Algorithm 1).

    Args:
        size: M, updates per step, >= 1. None: however many come until :meth:`fastagg.Server.close_round`.
    """

    size: int | None = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            _checks.whole("buffer_size", self.size, least=1)

    def start(self, size: int, device: torch.device, seed: int, buffer_size: int = 0) -> DirectionState:
        return BufferState(self.size, self.sign, size, device)


@dataclass(frozen=True)
class Cohort(Buffer):
    """The mean of one synchronous round: M clients, all of which started from the current version (FedAvg).

    An update from an earlier round is refused with UnknownVersion.
    """

    def start(self, size: int, device: torch.device, seed: int, buffer_size: int = 0) -> DirectionState:
        return BufferState(self.size, self.sign, size, device, synchronous=True)


@dataclass
class BufferState:
    """The sum of the updates so far; the last of a full round never enters it, it goes straight into the step."""

    capacity: int | None
    sign: float
    size: int
    device: torch.device
    synchronous: bool = False
    acc: Tensor | None = None
    total: float = 0.0  # of the shares in acc
    versions: list[int] = field(default_factory=list)

    def check(self, arrival: Arrival) -> None:
        """Refuse an update of another round with UnknownVersion."""
        if self.synchronous and arrival.version != arrival.now:
            raise UnknownVersion(
                f"client {arrival.client!r}: its update is from round {arrival.version}, this is round {arrival.now}"
            )

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        self.check(arrival)
        first = not self.versions
        gain, weight = arrival.gain * self.sign, arrival.weight * arrival.share
        if self.capacity is None or len(self.versions) + 1 < self.capacity:
            if self.acc is None:
                self.acc = memory.empty(self.size, self.device)
            ops.accumulate_(self.acc, arrival.update, gain * weight, fresh=first, verdict=arrival.verdict)
            self.versions.append(arrival.version)
            self.total += arrival.share
            return None
        total = self.total + arrival.share
        versions = [*self.versions, arrival.version]
        what: dict[str, Any] = {"gain": gain, "verdict": arrival.verdict}
        if first:  # M = 1: nothing to add to
            lr = apply(ops.step_, arrival.update, versions, weight=weight / total, **what)
        else:
            lr = apply(ops.step_, arrival.update, versions, weight=weight, acc=self.acc, scale=1.0 / total, **what)
        self.versions, self.total = [], 0.0
        return lr

    def arrive_model(self, arrival: Arrival, base: Tensor, apply: Apply) -> float | None:
        """:meth:`arrive` of ``arrival.update - base``, to the bit."""
        if self.acc is None:
            self.acc = memory.empty(self.size, self.device)
        if not self.versions:
            self.acc.zero_()
        weight = arrival.gain * self.sign * (arrival.weight * arrival.share)
        ops.accumulate_difference_(self.acc, arrival.update, base, weight)
        self.versions.append(arrival.version)
        self.total += arrival.share
        return self.flush(apply) if len(self.versions) == self.capacity else None

    def flush(self, apply: Apply) -> float | None:
        """Step with what has come; None if nothing has."""
        if self.acc is None or not self.versions:
            return None
        lr = apply(ops.step_, Pieces([self.acc]), self.versions, weight=1.0 / self.total)
        self.versions, self.total = [], 0.0
        return lr

    def memory(self) -> dict[str, int]:
        return {"direction": 0 if self.acc is None else self.acc.numel() * self.acc.element_size()}

    def state_dict(self) -> dict[str, Any]:
        acc = self.acc if self.versions else None  # between rounds it holds nothing
        return {"acc": acc, "total": self.total, "versions": list(self.versions)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["acc"] is not None:
            self.acc = memory.empty(self.size, self.device).copy_(state["acc"])
        self.total, self.versions = float(state["total"]), [int(v) for v in state["versions"]]
