"""The mean over clients whose information is fresh enough (ACED)."""

from __future__ import annotations

from dataclasses import dataclass

from fastagg import _checks
from fastagg._build import native
from fastagg._types import Native
from fastagg.rules.directions.all_clients import AllClients
from fastagg.rules.names import Freshness, words


@dataclass(frozen=True)
class ActiveSet(AllClients):
    """``u = mean over A(t) of U_i`` with ``A(t) = {i : t - t_start_i <= tau_algo}`` (ACED, Algorithm a.1).

    The server adds new updates to the sum over the active set and subtracts expired ones. An update takes O(d),
    amortised. If no client is active, the version increases without a step. The first step of ``warmup="full"`` uses
    every client's.

    Args:
        num_clients, cache, warmup: as in :class:`AllClients`.
        max_delay: tau_algo, >= 0.
        freshness: defines t_start_i. ``dispatch``: the version last sent to the client, so a client is fresh while it
            trains (Algorithm a.1, whose clients get the next model as soon as they answer). ``gradient``: the version
            that the client's cached update was computed on (the text of Eq. 7).

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.ActiveSet(2, max_delay=1), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())
        -2.0
    """

    max_delay: int = 10
    freshness: Freshness = "dispatch"

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.whole("max_delay", self.max_delay, least=0, most=2**53)
        _checks.one_of("freshness", self.freshness, words(Freshness))
        _checks.one_of("mode", self.mode, ("incremental",))

    def native_setting(self) -> Native:
        return native.engine.AllClientsSetting(
            clients=self.num_clients, full=self.warmup == "full", max_delay=self.max_delay,
            by_dispatch=self.freshness == "dispatch",
        )  # fmt: skip
