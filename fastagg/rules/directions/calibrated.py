"""A direction that buffers updates and calibrates each with the client's previous update (CA2FL). Servers call it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastagg._build import native
from fastagg._checks import Size
from fastagg._types import State
from fastagg.rules.directions.base import DirectionState, Material, PerClient, SumState, resummation_of
from fastagg.rules.names import Cache, Repeat
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache


@dataclass(frozen=True)
class Calibrated(PerClient):
    """``D = h + sum(Delta_i - h_i)/|S|`` over M updates, then ``h_i = Delta_i``, ``h = mean_i h_i``.

    This is CA2FL, the ACE paper's Algorithm a.3. h_i is the cached update of client i, and h the mean over all clients.
    S is the set of distinct clients in the buffer.

    Args:
        num_clients: n, >= 1. Client ids are 0..n-1.
        size: M, updates per step, >= 1.
        cache: format of the cached updates: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        repeat: what happens if a client answers twice in a round. ``start``: both updates are calibrated with the
            update that was cached at the start of the round (the paper). ``latest``: the second update is calibrated
            with the first update, and the sum is divided by M (as in public programs).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Calibrated(2, 2), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # in the first round there are no earlier updates, so h and h_i are zero
        2.0
    """

    size: Size = 10
    cache: Cache = "fp32"
    repeat: Repeat = "start"

    def start(self, material: Material) -> DirectionState:
        return _CalibratedState(self, material)


class _CalibratedState(SumState):
    """The rows (cached updates) of the clients and of the current round, the sum of clients' rows, and the buffer."""

    def __init__(self, setting: Calibrated, material: Material) -> None:
        slots = setting.num_clients + min(setting.size, setting.num_clients)
        size, device = material.size, material.device
        self.cache = ClientCache(size, slots, setting.cache, device, material.seed)
        self.sum = memory.zeros(size, device)  # the sum of the rows at the start of the round
        self.acc = memory.empty(size, device) if setting.size > 1 else self.sum
        self.resummation = resummation_of(self.cache, material)
        native_setting = native.engine.CalibratedSetting(
            clients=setting.num_clients, capacity=setting.size, from_start=setting.repeat == "start"
        )
        where = (material.seed, self.sum.data_ptr(), self.acc.data_ptr())
        super().__init__(
            native.engine.Calibrated(
                sign=setting.sign,
                setting=native_setting,
                rows=self.cache.native,
                where=where,
                resummation=self.resummation,
            )
        )

    def memory(self) -> dict[str, int]:
        held = 0 if self.acc is self.sum else self.acc.nbytes
        return {"direction": held + super().memory()["direction"]}

    def finite(self) -> bool:
        held = bool(self.native.state()["versions"])
        return super().finite() and not (held and not torch.isfinite(self.acc).all())

    def state_dict(self, *, rows: bool = True) -> State:
        state = super().state_dict(rows=rows)
        return {**state, "acc": self.acc if state["versions"] else None}

    def used(self, state: State) -> list[int]:
        return sorted({*(slot for _, slot in state["slots"]), *(slot for _, slot, _ in state["fresh"])})

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if state["acc"] is not None:
            self.acc.copy_(state["acc"])
