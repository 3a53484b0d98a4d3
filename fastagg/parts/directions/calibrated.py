"""Buffered updates, calibrated by what each client sent before (CA2FL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg.parts.directions.base import Apply, Arrival, Direction, DirectionState
from fastagg.storage import memory
from fastagg.storage.cache import FORMATS, ClientCache


@dataclass(frozen=True)
class Calibrated(Direction):
    """``D = h + sum(Delta_i - h_i)/|S|`` over M updates, then ``h_i = Delta_i``, ``h = mean_i h_i``.

    CA2FL, paper 002, Algorithm a.3; S is the set of distinct clients in the buffer.

    Args:
        num_clients: n, >= 1; client ids are 0..n-1.
        size: M, updates per step, >= 1.
        cache: format of the rows: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        repeat: ``start``: a client that returns twice in a round is calibrated against its row at the start of the
            round both times (the paper); ``latest``: against the row as it stands, and the sum is divided by M (what
            public programs do).
    """

    num_clients: int
    size: int = 10
    cache: str = "fp32"
    repeat: str = "start"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("num_clients", self.num_clients, least=1)
        _checks.whole("buffer_size", self.size, least=1)
        _checks.one_of("cache", self.cache, tuple(FORMATS))
        _checks.one_of("repeat", self.repeat, ("start", "latest"))

    @property
    def clients(self) -> int | None:
        return self.num_clients

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _CalibratedState(self, size, device, seed, origin)


class _CalibratedState:
    """Rows of the start of the round stay where they are until the step; rows that arrive in it go to M spare slots,
    and the step makes them the clients' own without moving anything."""

    def __init__(self, setting: Calibrated, size: int, device: torch.device, seed: int, origin: int = 0) -> None:
        self.setting, self.size, self.device, self.origin = setting, size, device, origin
        slots = setting.num_clients + min(setting.size, setting.num_clients)
        self.cache = ClientCache(size, slots, setting.cache, device, seed)
        self.sum = memory.zeros(size, device)  # over the rows at the start of the round
        self.slot: dict[int, int] = {}  # client -> its row at the start of the round
        self.fresh: dict[int, int] = {}  # client -> its row since
        self.free = list(range(slots - 1, -1, -1))
        self.shares: dict[int, float] = {}  # of the clients in the round
        self.total = 0.0  # of all shares in the round
        self.versions: list[int] = []
        self.acc: Tensor | None = None
        self.arrivals = 0

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        client, first = int(arrival.client), not self.versions
        against = self.slot.get(client, -1)
        if self.setting.repeat == "latest":
            against = self.fresh.get(client, against)
        if self.acc is None and self.setting.size > 1:
            self.acc = memory.empty(self.size, self.device)
        # The buffer is asked for even when M = 1 leaves nothing to keep in it: the sum stands in, never read.
        acc = self.sum if self.acc is None else self.acc
        write = self.fresh[client] if client in self.fresh else self.free[-1]
        shares = {**self.shares, client: arrival.share}
        versions, total = [*self.versions, arrival.version], self.total + arrival.share
        what: dict[str, Any] = {
            "cache": self.cache, "write": write, "read": against, "client": client, "arrival": self.arrivals,
            "gain": arrival.gain * arrival.weight, "acc": acc, "fresh": first,
            "weight": arrival.share * self.setting.sign, "verdict": arrival.verdict, "origin": self.origin,
        }  # fmt: skip
        lr: float | None = None
        done = len(versions) == self.setting.size
        if done:
            fresh = {**self.fresh, client: write}
            terms = [(slot, 1.0) for slot in fresh.values()]
            terms += [(self.slot[c], -1.0) for c in fresh if c in self.slot]
            divisor = sum(shares.values()) if self.setting.repeat == "start" else total
            lr = apply(
                ops.cached_step_, arrival.update, versions, sum=self.sum, terms=terms, acc_scale=1.0 / divisor,
                sum_scale=self.setting.sign / self.setting.num_clients, **what,
            )  # fmt: skip
        else:
            ops.cached_step_(None, arrival.update, sum=None, **what)
        self.arrivals += 1
        if client not in self.fresh:
            self.fresh[client] = self.free.pop()
        self.shares, self.versions, self.total = shares, versions, total
        if done:
            self._next_round()
        return lr

    def _next_round(self) -> None:
        for client, slot in self.fresh.items():
            if client in self.slot:
                self.free.append(self.slot[client])
            self.slot[client] = slot
        self.fresh, self.shares, self.versions, self.total = {}, {}, [], 0.0
        weights = torch.zeros(self.cache.slots)
        weights[list(self.slot.values())] = 1.0
        steps, n = self.arrivals // self.setting.size, self.setting.num_clients
        ops.refresh_sum_(self.sum, self.cache, weights, steps, n, self.origin)

    def memory(self) -> dict[str, int]:
        held = 0 if self.acc is None else self.acc.numel() * 4
        return {"direction": self.cache.nbytes() + self.sum.nbytes + held}

    def state_dict(self) -> dict[str, Any]:
        used = sorted({*self.slot.values(), *self.fresh.values()})
        return {
            "cache": self.cache.state_dict(used), "sum": self.sum, "slot": dict(self.slot),
            "fresh": dict(self.fresh), "free": list(self.free), "shares": dict(self.shares), "total": self.total,
            "versions": list(self.versions), "arrivals": self.arrivals, "acc": self.acc if self.versions else None,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cache.load_state_dict(state["cache"])
        self.sum.copy_(state["sum"])
        self.slot, self.fresh = dict(state["slot"]), dict(state["fresh"])
        self.free, self.shares = list(state["free"]), dict(state["shares"])
        self.versions, self.total = list(state["versions"]), float(state["total"])
        self.arrivals = int(state["arrivals"])
        if state["acc"] is not None:
            self.acc = memory.empty(self.size, self.device).copy_(state["acc"])
