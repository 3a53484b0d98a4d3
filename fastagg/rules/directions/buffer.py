"""A step along the mean of several updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import torch

from fastagg import _checks
from fastagg._build import native
from fastagg.rules.directions.base import Direction, DirectionState, Material
from fastagg.rules.names import Overflow, words


@dataclass(frozen=True)
class Buffer(Direction):
    """``D = sum(Delta_i)/M`` over every M updates (FedBuff; FADAS, Algorithm 1).

    Args:
        size: M, updates per step, >= 1. None: all that arrive until :meth:`fastagg.Server.close_round`.
        overflow: what a sum of several clients (:meth:`fastagg.Server.receive_partial`) does that is larger than what
            is left of M. ``take``: the step is along the mean of all, so of more than M. ``close``: first a step
            along what has come, then the sum begins the next round. It is one version older by then. A sum larger than
            M is a round of its own.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Buffer(4, overflow="close"))
        >>> tasks = [server.dispatch(leaf) for leaf in ("north", "south")]
        >>> sums = fastagg.Partial(torch.full((2,), 3.0), 3, 3.0), fastagg.Partial(torch.full((2,), 6.0), 3, 3.0)
        >>> receipts = [server.receive_partial(*answer) for answer in zip(("north", "south"), sums)]
        >>> server.version, server.flat  # north's alone; south's waits
        (1, tensor([1., 1.]))
    """

    size: int | None = 10
    overflow: Overflow = field(default="take", kw_only=True)
    buffered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None:
            _checks.whole("buffer_size", self.size, least=1)
        _checks.one_of("overflow", self.overflow, words(Overflow))

    def settings(self) -> dict[str, Any]:
        """All settings as plain data. Checkpoints from before ``overflow`` have the default."""
        found = super().settings()
        if found["overflow"] == "take":
            del found["overflow"]
        return found

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overflow == "close":
            raise _checks.ConfigError(
                "overflow: 'close' ends the round that a sum belongs to, and a synchronous rule then refuses the sum; "
                "leave it at 'take'"
            )


class BufferState(DirectionState):
    """The sum of the updates so far. The last update of a full round goes directly into the step."""

    sliced = MappingProxyType({"acc": "vector"})

    def __init__(self, setting: Buffer, material: Material) -> None:
        super().__init__(
            native.engine.Buffered(
                sign=setting.sign, capacity=-1 if setting.size is None else setting.size,
                synchronous=setting.synchronous, closes_first=setting.overflow == "close", size=material.size,
                origin=material.origin, memory=material.memory,
            )
        )  # fmt: skip

        self.nbytes = 4 * material.size

    def memory(self) -> dict[str, int]:
        return {"direction": self.nbytes if self.native.holds_sum else 0}

    def finite(self) -> bool:
        held = self.native.state()["acc"]
        return held is None or bool(torch.isfinite(held).all())
