"""A buffer in which updates count by how well they agree with where the model went (FedAC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fastagg import _checks, ops
from fastagg.parts.directions.base import Apply, Arrival, DirectionState
from fastagg.parts.directions.buffer import Buffer, BufferState
from fastagg.storage import memory

_LEAST = 0.1


@dataclass(frozen=True)
class CosineBuffer(Buffer):
    """``D = sum_i w_i Delta_i`` with ``w_i`` in proportion to ``max(cos(x_t - x_s, Delta_i), 0.1)``, 1 if fresh.

    The server also keeps a control variate C, to which a full buffer adds ``sum_i w_i (c_new - c_i)``. A
    reconstruction, see :func:`fastagg.FedAC`.

    Args:
        size: M, updates per step, >= 1.
    """

    needs_base: ClassVar[bool] = False
    measures: ClassVar[bool] = True
    takes_control: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("buffer_size", self.size, least=1)

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _CosineState(self.size, self.sign, size, device)


class _CosineState(BufferState):
    """A buffer whose shares are the affinities, and the control variate beside it."""

    def __init__(self, capacity: int | None, sign: float, size: int, device: torch.device) -> None:
        super().__init__(capacity, sign, size, device)
        self.control = memory.zeros(size, device)
        self.change = memory.zeros(size, device)
        self.changed = False

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        affinity = 1.0 if arrival.version == arrival.now else max(arrival.cosine, _LEAST)
        share = arrival.share * affinity
        total = self.total + share
        lr = super().arrive(arrival._replace(share=share), apply)
        if arrival.control is not None:
            ops.accumulate_(self.change, arrival.control, share, fresh=not self.changed)
            self.changed = True
        if lr is not None and self.changed:
            # Replaced, not changed in place: clients in flight may still read the one they were sent.
            self.control = self.control + self.change / total
            self.changed = False
        return lr

    def memory(self) -> dict[str, int]:
        return {"direction": super().memory()["direction"] + 8 * self.size}

    def state_dict(self) -> dict[str, Any]:
        change = self.change if self.changed else None
        return {**super().state_dict(), "control": self.control, "change": change}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.control = state["control"].to(self.device, copy=True)
        self.changed = state["change"] is not None
        if self.changed:
            self.change.copy_(state["change"])
