"""A direction that weights updates by their cosine with the model's movement (FedAC). Servers call it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fastagg import ops
from fastagg._checks import Size
from fastagg._types import Move, State
from fastagg.errors import UpdateTooLarge
from fastagg.rules.directions.base import Arrival, DirectionState, Findings, Material
from fastagg.rules.directions.buffer import Buffer, BufferState
from fastagg.storage import memory
from fastagg.storage.cell import SwapCell

_LEAST = 0.1  # the least weight of a stale update


@dataclass(frozen=True)
class CosineBuffer(Buffer):
    """``D = sum_i w_i Delta_i``. ``w_i`` is in proportion to ``max(cos(x_t - x_s, Delta_i), 0.1)``, or to 1 at delay 0.

    x_t is the current model, and x_s the model that the client was sent. A client's weight by ``weighting`` multiplies
    w_i. The server also keeps a control variate C, to which a full buffer adds ``sum_i w_i (c_new - c_i)``. This rule
    is a reconstruction (see :func:`fastagg.FedAC`).

    Args:
        size: M, updates per step, >= 1.
    """

    size: Size = 10
    measures: ClassVar[bool] = True
    takes_control: ClassVar[bool] = True
    ends_early: ClassVar[bool] = False

    def start(self, material: Material) -> DirectionState:
        return _CosineState(self, material)


class _CosineState(BufferState):
    """A buffer, and the control variate. A step replaces this tensor by a new one, as clients may still read it."""

    asks = True
    control = SwapCell[Tensor]()
    change = SwapCell["Tensor | None"]()  # the sum of the changes of clients' control variates since the last step

    def __init__(self, setting: CosineBuffer, material: Material) -> None:
        super().__init__(setting, material)
        self.size, self.device = material.size, material.device
        self.control = memory.zeros(material.size, material.device)
        self.change = None

    def before(self, arrival: Arrival, findings: Findings) -> None:
        affinity = max(arrival.cosine, _LEAST) if arrival.facts.delay else 1.0
        share = arrival.facts.share * affinity
        change = self.change
        if arrival.control is not None:
            fresh = memory.empty(self.size, self.device)
            if change is not None:
                fresh.copy_(change)
            change = ops.accumulate_(fresh, arrival.control, share * arrival.facts.gain, fresh=change is None)
            if not ops.inspect(change).finite:
                raise UpdateTooLarge("control: the sum of changes would leave the range of float32")
        moves: list[Move] = [(self, "change", change)]
        if arrival.room == 1 and change is not None:
            control = self.control + change / ((arrival.total + share) or 1.0)
            if not ops.inspect(control).finite:
                raise UpdateTooLarge("control: the control variate would leave the range of float32")
            moves = [(self, "control", control), (self, "change", None)]
        findings.share, findings.moves = share, moves

    def memory(self) -> dict[str, int]:
        change = 0 if self.change is None else self.change.nbytes
        return {"direction": super().memory()["direction"] + self.control.nbytes + change}

    def finite(self) -> bool:
        held = [self.control, *([] if self.change is None else [self.change])]
        return super().finite() and all(ops.inspect(vector).finite for vector in held)

    def state_dict(self, *, rows: bool = True) -> State:
        return {**super().state_dict(), "control": self.control, "change": self.change}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.control = state["control"].to(self.device, copy=True)
        self.change = None if state["change"] is None else state["change"].to(self.device, copy=True)
