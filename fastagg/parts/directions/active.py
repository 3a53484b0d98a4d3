"""The mean over clients whose information is fresh enough (ACED)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastagg import _checks
from fastagg.parts.directions.all_clients import AllClients, AllClientsState
from fastagg.parts.directions.base import Apply, Arrival, DirectionState

_NEVER = torch.iinfo(torch.int64).min // 2


@dataclass(frozen=True)
class ActiveSet(AllClients):
    """``u = mean over A(t) of U_i`` with ``A(t) = {i : t - t_start_i <= tau_algo}`` (ACED, paper 002, Algorithm a.1).

    The sum over the active set is kept by adding arrivals and subtracting expiries: O(d) an arrival, amortised. When
    nobody is active nothing is applied and the version moves on.

    Args:
        num_clients, cache, warmup: as in :class:`AllClients`.
        max_delay: tau_algo, >= 0.
        freshness: ``dispatch``: a client is as fresh as the last model it was sent, so it counts while it trains
            (Algorithm a.1); ``gradient``: as fresh as the version its row was computed on (the text of Eq. 7).
    """

    max_delay: int = 10
    freshness: str = "dispatch"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("max_delay", self.max_delay, least=0)
        _checks.one_of("freshness", self.freshness, ("dispatch", "gradient"))
        _checks.one_of("mode", self.mode, ("incremental",))

    def start(
        self, size: int, device: torch.device, seed: int, buffer_size: int = 0, origin: int = 0
    ) -> DirectionState:
        return _ActiveSetState(self, size, device, seed, origin)


class _ActiveSetState(AllClientsState):
    """`_begun[i]` is t_start_i of Algorithm a.1."""

    setting: ActiveSet

    def __init__(self, setting: ActiveSet, size: int, device: torch.device, seed: int, origin: int = 0) -> None:
        super().__init__(setting, size, device, seed, origin)
        self._begun = np.full(setting.num_clients, _NEVER, np.int64)

    def arrive(self, arrival: Arrival, apply: Apply) -> float | None:
        client, now, n = int(arrival.client), arrival.now, self.setting.num_clients
        share = float(np.float32(arrival.share))
        old, leaving = float(self._shares[client]), float(self._weights[client])
        by_dispatch = self.setting.freshness == "dispatch"
        begun = self._begun.copy()
        if not by_dispatch or begun[client] == _NEVER:
            begun[client] = arrival.version
        started = self.setting.warmup == "partial" or self.heard == n
        entering = share
        terms: tuple[tuple[int, float], ...] = ()
        if started:
            active = (now - begun <= self.setting.max_delay) & (self._shares > 0)
            entering = share if now - int(begun[client]) <= self.setting.max_delay else 0.0
            changed = (active != (self._weights > 0)).nonzero()[0].tolist()
            signed = np.where(active, self._shares, -self._shares)
            terms = tuple((slot, float(signed[slot])) for slot in changed if slot != client)
        lr = self._exchange(arrival, apply, share=share, old=old, entering=entering, leaving=leaving, terms=terms)
        if by_dispatch:
            if started:
                begun[client] = now + 1
            elif self.heard == n:  # the first step: every client is sent the next model
                begun.fill(now + 1)
        self._begun = begun
        return lr

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "begun": torch.from_numpy(self._begun)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        torch.from_numpy(self._begun).copy_(state["begun"])
