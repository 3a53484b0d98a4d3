"""Rules that keep the latest gradient of every client (002).

ACE: Alg. 1 (direct: the mean is recomputed from all rows). ACED: Alg. a.1 and Eq. 7.
"""

from typing import Any, Literal

import numpy.typing as npt

from .buffered import Store
from .core import Arrival, Composed, Direction, Vector, weighted_mean
from .optimizers import SGD

Warmup = Literal["full", "partial"]


class AllClients(Direction):
    """ACE (002 Alg. 1 lines 9 and 10): U_j <- g_j; u = mean_i U_i.

    warmup="full"     no step until all clients have been heard, then one, and one on every arrival; a client
                      that returns twice meanwhile replaces its row
    warmup="partial"  the mean is over the clients heard so far and every arrival steps
    store             what a row becomes when it is stored (quantisation), given (client, row)

    With sample weights u = sum(n_i*U_i)/sum(n_i), n_i as sent with the row.
    """

    def __init__(self, num_clients: int, warmup: Warmup = "full", store: Store | None = None) -> None:
        self.num_clients, self.warmup = num_clients, warmup
        self.store: Store = (lambda client, row: row) if store is None else store
        self.rows: dict[int, Vector] = {}
        self.samples: dict[int, float] = {}

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        self.keep(arrival)
        if self.warmup == "full" and len(self.rows) < self.num_clients:
            return "wait"
        return self.mean_of(sorted(self.rows))

    def keep(self, arrival: Arrival) -> None:
        """The arriving gradient becomes the client's row."""
        if not 0 <= arrival.client < self.num_clients:
            raise KeyError(arrival.client)
        self.rows[arrival.client] = self.store(arrival.client, arrival.weight * arrival.update)
        self.samples[arrival.client] = arrival.samples

    def mean_of(self, clients: list[int]) -> Vector:
        """Mean of these clients' rows."""
        return weighted_mean([self.rows[i] for i in clients], [self.samples[i] for i in clients])


class ActiveSet(AllClients):
    """ACED (002 Alg. a.1): u = mean over A(t) of U_i, A(t) = {i : t - t_start_i <= tau_algo}, t as before the
    step.

    freshness="dispatch"  t_start_i is the version i was last sent. Alg. a.1 sends the next model, t+1, to all at the
                          first step and to j after its arrival at t; a driver that does so gets exactly that: a
                          client that comes back too late is left out of that one step and counts from the next
    freshness="gradient"  Eq. 7's text: t_start_j is the version s its cached gradient was computed on (0 for
                          the first gradients), so a fresh arrival counts at once and a stale one never
    The first step of warmup="full" takes every row (Alg. a.1 line 2).
    """

    def __init__(
        self,
        num_clients: int,
        max_delay: int,
        freshness: Literal["dispatch", "gradient"] = "dispatch",
        warmup: Warmup = "full",
        store: Store | None = None,
    ) -> None:
        super().__init__(num_clients, warmup, store)
        self.tau_algo, self.freshness = max_delay, freshness
        self.start: dict[int, int] = {}
        self.active: list[int] = []  # A(t) of the last iteration

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        t, j = server.t, arrival.client
        if self.freshness == "gradient":
            self.start[j] = arrival.version
        started = self.warmup == "partial" or len(self.rows) == self.num_clients
        self.keep(arrival)
        if not started:
            if len(self.rows) < self.num_clients:
                return "wait"
            self.active = sorted(self.rows)
            return self.mean_of(self.active)

        self.active = [i for i in sorted(self.rows) if t - self.start[i] <= self.tau_algo]
        return self.mean_of(self.active) if self.active else "empty"

    def dispatched(self, client: int, version: int) -> None:
        if self.freshness == "dispatch":
            self.start[client] = version


class ACE(Composed):
    """002 Alg. 1, direct aggregation: x <- x - eta*mean_i U_i on every arrival."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float,
        num_clients: int,
        warmup: Warmup = "full",
        store: Store | None = None,
        **common: Any,
    ) -> None:
        super().__init__(x0, AllClients(num_clients, warmup, store), SGD(lr), kind="gradient", **common)


class ACED(Composed):
    """002 Alg. a.1: as ACE over the active set only."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float,
        num_clients: int,
        max_delay: int,
        freshness: Literal["dispatch", "gradient"] = "dispatch",
        warmup: Warmup = "full",
        store: Store | None = None,
        **common: Any,
    ) -> None:
        self.active_set = ActiveSet(num_clients, max_delay, freshness, warmup, store)
        super().__init__(x0, self.active_set, SGD(lr), kind="gradient", **common)
