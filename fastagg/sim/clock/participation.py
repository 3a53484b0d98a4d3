"""Who trains next in asynchronous federated learning.

There are three methods. ``initial() -> list[int]`` returns the clients that get a task at the start. ``next(arrived)
-> int`` returns the client that gets the current model after ``arrived`` has answered. ``drop(gone, flying)`` removes
the clients ``gone`` for good, of which ``flying`` are training, and returns the clients that get the model in their
place. Draws are keyed by (seed, arrival), see seeds.py.
"""

from __future__ import annotations

from collections.abc import Collection

from fastagg._types import State
from fastagg.sim.seeds import below, generator


class Participation:
    """M_c = ``concurrency`` clients train at once. After each arrival a uniformly drawn idle client gets the model.

    The client that has just answered is idle too and can be drawn again (FedBuff, FADAS, CA2FL, FedEcho). Without
    ``concurrency`` all clients train all the time, so each gets the new model when it answers (ACE, AsyncFedED).
    """

    def __init__(self, clients: int, concurrency: int | None, seed: int) -> None:
        self._seed, self._all = seed, concurrency is None
        self._arrivals = 0
        order = list(range(clients))
        if not self._all:
            order = generator(seed, "participation-start").permutation(order).tolist()
        self._first = order[:concurrency]
        self._idle = order[len(self._first) :]

    def initial(self) -> list[int]:
        return list(self._first)

    def next(self, arrived: int) -> int:
        if self._all:
            return arrived
        self._idle.append(arrived)
        return self._draw()

    def drop(self, gone: Collection[int], flying: int) -> list[int]:
        # Other clients replace those that never answer, so M_c clients train while enough remain.
        self._idle = [client for client in self._idle if client not in gone]
        return [self._draw() for _ in range(min(flying, len(self._idle)))]

    def state_dict(self) -> State:
        return {"arrivals": self._arrivals, "idle": list(self._idle)}

    def load_state_dict(self, state: State) -> None:
        self._arrivals, self._idle = state["arrivals"], list(state["idle"])

    def _draw(self) -> int:
        slot = below(len(self._idle), self._seed, "participation", self._arrivals)
        self._arrivals += 1
        # Move the last one into the gap, in O(1). A uniform draw does not depend on the order.
        self._idle[slot], self._idle[-1] = self._idle[-1], self._idle[slot]
        return self._idle.pop()
