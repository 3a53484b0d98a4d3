"""The mean over clients whose information is fresh enough (ACED)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastagg import _checks
from fastagg._build import native
from fastagg.parts.directions.all_clients import AllClients
from fastagg.parts.names import Freshness, words


@dataclass(frozen=True)
class ActiveSet(AllClients):
    """``u = mean over A(t) of U_i`` with ``A(t) = {i : t - t_start_i <= tau_algo}`` (ACED, Algorithm a.1).

    The sum over the active set is kept by adding arrivals and subtracting expiries: O(d) an arrival, amortised. When
    nobody is active nothing is applied and the version moves on. The first step of ``warmup="full"`` takes every row.

    Args:
        num_clients, cache, warmup: as in :class:`AllClients`.
        max_delay: tau_algo, >= 0.
        freshness: ``dispatch``: t_start_i is the version last sent to the client, so it counts while it trains
            (Algorithm a.1, whose clients are sent the next model as soon as they answer); ``gradient``: the version
            its row was computed on (the text of Eq. 7).
    """

    max_delay: int = 10
    freshness: Freshness = "dispatch"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("max_delay", self.max_delay, least=0, most=2**53)
        _checks.one_of("freshness", self.freshness, words(Freshness))
        _checks.one_of("mode", self.mode, ("incremental",))

    def book_setting(self) -> Any:
        return native.serving.AllClientsSetting(
            clients=self.num_clients, full=self.warmup == "full", max_delay=self.max_delay,
            by_dispatch=self.freshness == "dispatch",
        )  # fmt: skip
