"""Every update is a step of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fastagg import _checks
from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.rules.directions.base import Direction, DirectionState, Material


@dataclass(frozen=True)
class Single(Direction):
    """``D = Delta_i``, or ``D = -g_i`` with ``kind="gradient"`` (asynchronous SGD).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Single(), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # a step for each
        4.0
    """

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=self.sign))


@dataclass(frozen=True)
class Mixing(Direction):
    """A step towards the client's model: ``D = x_i^K - x_t`` with ``x_i^K = x_s + Delta_i``.

    With SGD and ``lr = alpha`` this is FedAsync's ``x <- (1-a_t)*x + a_t*x_i^K`` (the AsyncFedED paper, Eq. 40).

    Args:
        normalize: D is also multiplied by the client's samples (1 with ``weighting="uniform"``), divided by this
            number, > 0: the share among all clients (APPFL). None: samples have no effect.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Mixing(), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # with a rate of 1 the model is the last client's
        3.0
    """

    normalize: float | None = field(default=None, kw_only=True)
    needs_base: ClassVar[bool] = True
    in_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize is not None:
            _checks.number("normalize", self.normalize, above=0)
        if self.kind != "delta":
            raise ConfigError("Mixing averages models: kind must be 'delta', since a gradient is no model")

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=1.0, blend=True, divisor=self.normalize or 0.0))
