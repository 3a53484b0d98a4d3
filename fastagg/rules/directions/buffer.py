"""A step along the mean of several updates."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch

from fastagg import _checks
from fastagg._build import native
from fastagg.rules.directions.base import Direction, DirectionState, Material


@dataclass(frozen=True)
class Buffer(Direction):
    """``D = sum(Delta_i)/M`` over every M updates (FedBuff; FADAS, Algorithm 1).

    Args:
        size: M, updates per step, >= 1. None: all that arrive until :meth:`fastagg.Server.close_round`.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Buffer(2), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # one step along the mean
        2.0
    """

    size: int | None = 10
    buffered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            _checks.whole("buffer_size", self.size, least=1)

    def start(self, material: Material) -> DirectionState:
        return BufferState(self, material)


@dataclass(frozen=True)
class Cohort(Buffer):
    """The mean of one synchronous round: M clients, all of which started from the current version (FedAvg).

    An update from an earlier round is refused with UnknownVersion.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Cohort(2), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # the mean of the round
        2.0
    """

    synchronous: ClassVar[bool] = True


class BufferState(DirectionState):
    """The sum of the updates so far. The last update of a full round goes directly into the step."""

    sliced = MappingProxyType({"acc": "vector"})

    def __init__(self, setting: Buffer, material: Material) -> None:
        super().__init__(
            native.engine.Buffered(
                sign=setting.sign, capacity=-1 if setting.size is None else setting.size,
                synchronous=setting.synchronous, size=material.size, origin=material.origin, memory=material.memory,
            )
        )  # fmt: skip

        self.nbytes = 4 * material.size

    def memory(self) -> dict[str, int]:
        return {"direction": self.nbytes if self.native.holds_sum else 0}

    def finite(self) -> bool:
        held = self.native.state()["acc"]
        return held is None or bool(torch.isfinite(held).all())
