"""The mean of several updates is a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg.errors import UnknownVersion
from fastagg.parts.directions.base import Apply, Arrival, Direction, DirectionState
from fastagg.storage import memory
from fastagg.storage.pieces import Pieces


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

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return BufferState(self.size, self.sign, size, device)


@dataclass(frozen=True)
class Cohort(Buffer):
    """The mean of one synchronous round: M clients, all of which started from the current version (FedAvg).

    An update from an earlier round is refused with UnknownVersion.
    """

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
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

    @property
    def room(self) -> int | None:
        """Updates until the next step; None where no number of them is a step."""
        return None if self.capacity is None else self.capacity - len(self.versions)

    def arrive_models(self, arrivals: Sequence[Arrival], apply: Apply) -> tuple[list[bool], float | None]:
        """:meth:`arrive` of each ``arrival.update - arrival.base`` (no base: the update itself), at most :attr:`room`
        of them, to the bit.

        Returns:
            Which differences were finite, the others being left out, and the learning rate if there was a step.
        """
        finite = [True] * len(arrivals)
        while True:  # a second time without those that spoilt the sum
            good = [arrival for arrival, taken in zip(arrivals, finite, strict=True) if taken]
            if not good:
                return finite, None
            found = self._fold(good)
            if all(found):
                break
            verdict = iter(found)
            finite = [taken and next(verdict) for taken in finite]
        for arrival in good:
            self.versions.append(arrival.version)
            self.total += arrival.share
        return finite, self.flush(apply) if self.room == 0 else None

    def _fold(self, arrivals: Sequence[Arrival]) -> list[bool]:
        """Add differences to the sum, which stays as it was if one of them is not finite."""
        models = [arrival.update for arrival in arrivals]
        bases = [arrival.base for arrival in arrivals]
        weights = [a.gain * self.sign * (a.weight * a.share) for a in arrivals]
        if self.versions and self.acc is not None:
            # Beside the sum it is a read less and a vector more: where none lies about, models are looked at first.
            acc, out = self.acc, memory.spare(self.size, self.device)
            if out is None:
                finite = ops.fold(models, bases, weights, None, None)
                if not all(finite):
                    return finite
                out = acc
        else:
            acc, out = None, memory.empty(self.size, self.device) if self.acc is None else self.acc
        finite = ops.fold(models, bases, weights, acc, out)
        if all(finite):
            self.acc = out
        return finite

    def flush(self, apply: Apply) -> float | None:
        """Step with what has come; None if nothing has."""
        if self.acc is None or not self.versions:
            return None
        lr = apply(ops.step_, Pieces([self.acc]), self.versions, into=self.acc, weight=1.0 / self.total)
        self.acc, self.versions, self.total = None, [], 0.0
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
