"""Who trains next in asynchronous federated learning.

room                       how many more clients may get the model now
soonest(now) -> float      when the next idle client may get it; infinite: never
draw(now) -> int           the client that gets it then
back(client)               it has answered, and is idle
drop(gone, flying)         the clients ``gone`` never answer again; ``flying`` of them are training
"""

from __future__ import annotations

import math
from collections.abc import Collection

from fastagg._types import State
from fastagg.sim.clock.sampling import Uniform
from fastagg.sim.seeds import generator


class Participation:
    """M_c = ``concurrency`` clients train at once. After each arrival an idle one, drawn by ``rule``, gets the model.

    The client that has just answered is idle too and can be drawn again (FedBuff, FADAS, CA2FL, FedEcho). Without
    ``concurrency`` all clients train all the time, so each gets the new model when it answers (ACE, AsyncFedED), or as
    soon as it is available.
    """

    def __init__(self, clients: int, concurrency: int | None, seed: int, rule: Uniform | None = None) -> None:
        self._rule, self._arrivals = rule or Uniform(seed), 0
        self.room = clients if concurrency is None else concurrency
        self._idle = list(range(clients))
        self._first: list[int] = []
        if type(self._rule) is Uniform:  # the first are taken from one order, and are no draws
            order = self._idle if concurrency is None else generator(seed, "participation-start").permutation(clients)
            self._idle = [int(client) for client in order]
            self._first = self._idle[: self.room][::-1]
            del self._idle[: self.room]

    def soonest(self, now: float) -> float:
        if self._first or (self._idle and self._rule.always):
            return now
        return min((self._rule.opens(client, now) for client in self._idle), default=math.inf)

    def draw(self, now: float) -> int:
        self.room -= 1
        if self._first:
            return self._first.pop()
        self._arrivals += 1
        if self._rule.always:
            slot = self._rule.choose(self._idle, now, self._arrivals - 1)
        else:
            ready = [slot for slot, client in enumerate(self._idle) if self._rule.opens(client, now) <= now]
            slot = ready[self._rule.choose([self._idle[slot] for slot in ready], now, self._arrivals - 1)]
        # Move the last one into the gap, in O(1). A draw does not depend on the order.
        self._idle[slot], self._idle[-1] = self._idle[-1], self._idle[slot]
        return self._idle.pop()

    def back(self, client: int) -> None:
        self._idle.append(client)
        self.room += 1

    def drop(self, gone: Collection[int], flying: int) -> None:
        # Other clients replace those that never answer, so M_c clients train while enough remain.
        self._idle = [client for client in self._idle if client not in gone]
        self.room += flying

    def state_dict(self) -> State:
        return {"arrivals": self._arrivals, "idle": list(self._idle), "room": self.room}

    def load_state_dict(self, state: State) -> None:
        self._arrivals, self._idle, self._first = state["arrivals"], list(state["idle"]), []
        self.room = state.get("room", 0)  # older checkpoints never had any
