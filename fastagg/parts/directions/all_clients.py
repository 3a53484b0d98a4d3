"""The mean over all clients' latest updates is the direction, at every arrival (ACE)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg.errors import ConfigError
from fastagg.parts.directions.base import Apply, Arrival, Direction, DirectionState
from fastagg.parts.staleness import Staleness
from fastagg.storage import memory
from fastagg.storage.cache import FORMATS, ClientCache
from fastagg.storage.pieces import Pieces

WARMUPS = ("full", "partial")


@dataclass(frozen=True)
class AllClients(Direction):
    """``u = mean_i U_i`` over every client's latest update; ``D = -u`` for gradients (ACE, paper 002, Algorithm 1).

    An arrival replaces the client's row and the sum follows by the difference of what is *stored*, so the mean is
    always that of the rows; a slice of the sum is recomputed exactly at each arrival, so it never drifts.

    Args:
        num_clients: n, >= 1; client ids are 0..n-1.
        cache: format of the rows: ``fp32``, ``bf16``, ``int8`` or ``int4``.
        warmup: ``full``: nothing is applied until all clients have been heard (Algorithm 1); ``partial``: the mean is
            over those heard so far and every arrival steps.
        mode: ``incremental``, O(d) an arrival, or ``direct``, O(n*d): the sum is recomputed every time.
    """

    num_clients: int
    cache: str = "fp32"
    warmup: str = "full"
    mode: str = "incremental"
    kind: str = field(default="gradient", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("num_clients", self.num_clients, least=1)
        _checks.one_of("cache", self.cache, tuple(FORMATS))
        _checks.one_of("warmup", self.warmup, WARMUPS)
        _checks.one_of("mode", self.mode, ("incremental", "direct"))

    @property
    def clients(self) -> int | None:
        return self.num_clients

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return AllClientsState(self, size, device, seed, origin)


@dataclass(frozen=True)
class Differences(Direction):
    """ACE where every client keeps its own last gradient and sends ``g_new - g_prev`` (paper 002, Algorithm a.5).

    The server keeps the sum alone. :class:`fastagg.clients.GradientDifference` is the client's side.

    Args:
        num_clients: n, >= 1.
        warmup: as in :class:`AllClients`.
    """

    num_clients: int
    warmup: str = "full"
    kind: str = field(default="gradient", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("num_clients", self.num_clients, least=1)
        _checks.one_of("warmup", self.warmup, WARMUPS)

    @property
    def clients(self) -> int | None:
        return self.num_clients

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        reason = "differences must reach the sum whole, or it is no sum of gradients any more"
        if staleness.weighs or clip_norm is not None or weighting != "uniform":
            raise ConfigError(f"Differences takes no staleness weight, no clip_norm and no sample weights: {reason}")

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _DifferencesState(self, size, device, origin)


class AllClientsState:
    """Rows, their sum, and how much each row weighs in it.

    Weights are NumPy's: a number of them is read and written in a tenth of the time that torch's take, which is what an
    arrival at a small model costs.
    """

    def __init__(self, setting: AllClients, size: int, device: torch.device, seed: int, origin: int = 0) -> None:
        self.setting, self.origin = setting, origin
        self.cache = ClientCache(size, setting.num_clients, setting.cache, device, seed)
        self.sum = memory.zeros(size, device)
        self._shares = np.zeros(setting.num_clients, np.float32)  # of rows that were heard; 0 for the others
        self._weights = np.zeros(setting.num_clients, np.float32)  # of rows in the sum
        self.heard = 0
        self.arrivals = 0

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        assert isinstance(arrival.client, int)
        share = float(np.float32(arrival.share))  # as the kernel will multiply by it
        old = float(self._shares[arrival.client])
        return self._exchange(arrival, apply, share=share, old=old, entering=share, leaving=old, terms=())

    @property
    def weights(self) -> Tensor:
        """Of the rows in the sum, [num_clients]."""
        return torch.from_numpy(self._weights)

    def _exchange(
        self,
        arrival: Arrival,
        apply: Apply,
        *,
        share: float,
        old: float,
        entering: float,
        leaving: float,
        terms: tuple[tuple[int, float], ...],
    ) -> float | None:
        """Write the row, let the sum follow, and step if there is a mean to step along."""
        client = int(arrival.client)
        weights = self._weights.copy()
        weights[client] = entering
        for slot, weight in terms:
            weights[slot] = weight if weight > 0 else 0.0
        total = float(weights.sum(dtype=np.float64))
        heard = self.heard + (old == 0.0)
        waits = self.setting.warmup == "full" and heard < self.setting.num_clients
        what: dict[str, Any] = {
            "cache": self.cache, "sum": self.sum, "write": client, "read": client if leaving else -1,
            "client": client, "arrival": self.arrivals, "gain": arrival.gain * arrival.weight,
            "entering": entering, "leaving": leaving, "terms": terms, "verdict": arrival.verdict,
            "origin": self.origin,
        }  # fmt: skip
        lr: float | None = None
        if waits or total == 0.0 or self.setting.mode == "direct":
            ops.cached_step_(None, arrival.update, **what)
            if total == 0.0:
                self.sum.zero_()
        else:
            lr = apply(ops.cached_step_, arrival.update, [arrival.version], sum_scale=self.setting.sign / total, **what)
        self._shares[client], self._weights, self.heard = share, weights, heard
        self.arrivals += 1
        if self.setting.mode == "direct":
            ops.recompute_sum_(self.sum, self.cache, self.weights)
            if not waits and total:
                mean = Pieces([self.sum])
                lr = apply(ops.step_, mean, [arrival.version], gain=self.setting.sign / total)
        else:
            n = self.setting.num_clients
            ops.refresh_sum_(self.sum, self.cache, self.weights, self.arrivals, n, self.origin)
        if not waits and total == 0.0:
            apply(None, arrival.update, [])
        return lr

    def memory(self) -> dict[str, int]:
        return {"direction": self.cache.nbytes() + self.sum.nbytes + 8 * self.setting.num_clients}

    def state_dict(self) -> dict[str, Any]:
        slots = self._shares.nonzero()[0].tolist()
        return {
            "cache": self.cache.state_dict(slots), "sum": self.sum,
            "shares": torch.from_numpy(self._shares), "weights": self.weights,
            "heard": self.heard, "arrivals": self.arrivals,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.cache.load_state_dict(state["cache"])
        self.sum.copy_(state["sum"])
        torch.from_numpy(self._shares).copy_(state["shares"])
        self.weights.copy_(state["weights"])
        self.heard, self.arrivals = int(state["heard"]), int(state["arrivals"])


class _DifferencesState:
    """The sum of the differences is the sum of the gradients."""

    def __init__(self, setting: Differences, size: int, device: torch.device, origin: int = 0) -> None:
        self.setting, self.origin = setting, origin
        self.sum = memory.zeros(size, device)
        self.heard: set[int] = set()
        self.arrivals = 0

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        heard = self.heard | {int(arrival.client)}
        what: dict[str, Any] = {
            "cache": None, "sum": self.sum, "arrival": self.arrivals, "gain": arrival.gain, "verdict": arrival.verdict,
            "origin": self.origin,
        }  # fmt: skip
        lr: float | None = None
        if self.setting.warmup == "full" and len(heard) < self.setting.num_clients:
            ops.cached_step_(None, arrival.update, **what)
        else:
            scale = self.setting.sign / len(heard)
            lr = apply(ops.cached_step_, arrival.update, [arrival.version], sum_scale=scale, **what)
        self.heard = heard
        self.arrivals += 1
        return lr

    def memory(self) -> dict[str, int]:
        return {"direction": self.sum.nbytes}

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self.sum, "heard": sorted(self.heard), "arrivals": self.arrivals}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sum.copy_(state["sum"])
        self.heard = {int(client) for client in state["heard"]}
        self.arrivals = int(state["arrivals"])
