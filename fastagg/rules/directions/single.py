"""Every update is a step of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.rules.directions.base import Direction, DirectionState, Material


@dataclass(frozen=True)
class Single(Direction):
    """``D = Delta_i``, or ``D = -g_i`` with ``kind="gradient"`` (asynchronous SGD)."""

    single: ClassVar[bool] = True

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=self.sign))


@dataclass(frozen=True)
class Mixing(Direction):
    """A step towards the client's model: ``D = x_i^K - x_t`` with ``x_i^K = x_s + Delta_i``.

    With SGD and ``lr = alpha`` this is FedAsync's ``x <- (1-a_t)*x + a_t*x_i^K`` (the AsyncFedED paper, Eq. 40).
    """

    needs_base: ClassVar[bool] = True
    in_kernels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "delta":
            raise ConfigError("Mixing averages models: kind must be 'delta', since a gradient is no model")

    def start(self, material: Material) -> DirectionState:
        return DirectionState(native.engine.Single(sign=1.0, blend=True))
