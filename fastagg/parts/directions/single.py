"""Every update is a step of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fastagg import ops
from fastagg.errors import ConfigError
from fastagg.parts.directions.base import Apply, Arrival, Direction, DirectionState


@dataclass(frozen=True)
class Single(Direction):
    """``D = Delta_i``, or ``D = -g_i`` with ``kind="gradient"`` (asynchronous SGD)."""

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _SingleState(self.sign)


@dataclass(frozen=True)
class Mixing(Direction):
    """A step towards the client's model: ``D = x_i^K - x_t`` with ``x_i^K = x_s + Delta_i``.

    With SGD and ``lr = alpha`` this is FedAsync's ``x <- (1-a_t)*x + a_t*x_i^K`` (paper 003, Eq. 40).
    """

    needs_base: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "delta":
            raise ConfigError("Mixing averages models: kind must be 'delta', since a gradient is no model")

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _SingleState(1.0)


class _SingleState:
    """Nothing to keep between updates. The mean of one update is that update, whatever its share."""

    def __init__(self, sign: float) -> None:
        self.sign = sign

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        lr = apply(
            ops.step_,
            arrival.update,
            [arrival.version],
            gain=arrival.gain * self.sign,
            weight=arrival.weight,
            base=arrival.base,
            verdict=arrival.verdict,
        )
        return lr * arrival.weight

    def memory(self) -> dict[str, int]:
        return {"direction": 0}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state
