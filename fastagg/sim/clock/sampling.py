"""Chooses the client that trains next in asynchronous federated learning.

A :class:`ClientPool` has these members:

room                       the number of further clients that may train at the same time
soonest(now) -> float      returns the first time at which an idle client may get the model; infinite: never
draw(now) -> int           returns the client that gets the model at the time ``now``
back(client, rests=)       makes the client idle, because it has answered; ``rests``: only after the next ``wake``
wake()                     makes the resting clients idle, because there is a new version
drop(gone, flying)         removes the clients ``gone``, which never answer again; ``flying`` of them are training

A sampling rule chooses among the idle clients. It has two methods:

    choose(idle, now, arrival) -> int   returns the index in ``idle`` of the client that gets the model at ``now``
    opens(client, now) -> float         returns the first time from ``now`` on at which the client may get the model;
                                        infinite: never

``arrival`` counts the choices of a run from 0. Draws are keyed by (seed, arrival), see seeds.py.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fastagg import _checks
from fastagg._types import State
from fastagg.errors import ConfigError
from fastagg.sim.clock.view import History
from fastagg.sim.data.files import intervals
from fastagg.sim.functions import parameters
from fastagg.sim.seeds import below, generator

# Takes the idle clients, the virtual time, this draw's generator, and perhaps a view. Returns one of the clients.
SamplingFunction = Callable[..., int]


class UniformSampling:
    """Draws from all idle clients with equal chances (FedBuff, FADAS, CA2FL, FedEcho)."""

    always = True  # whether every client may get the model at any time

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, idle: Sequence[int], now: float, arrival: int) -> int:
        return below(len(idle), self._seed, "participation", arrival)

    def opens(self, client: int, now: float) -> float:
        return now


class AvailabilitySampling(UniformSampling):
    """Draws from the available idle clients with equal chances.

    Args:
        traces: for each client, the ``(begin, end)`` of all spans of time in which the client is available. A client
            may answer after the end.
        period: the virtual time after which the traces begin again. None: the traces do not begin again.
    """

    always = False

    def __init__(self, seed: int, traces: Sequence[Sequence[tuple[float, float]]], period: float | None) -> None:
        super().__init__(seed)
        self._begins, self._ends = zip(*(_joined(trace) for trace in traces), strict=True)
        self._period = period

    def opens(self, client: int, now: float) -> float:
        begins, ends, period = self._begins[client], self._ends[client], self._period
        # A returned time may be rounded down. The addition to `now` makes the client available at this time, too.
        place = now + 4 * math.ulp(max(now, period or 0.0, *ends[-1:]))
        past, place = (0.0, place) if period is None else (place - place % period, place % period)
        at = bisect_right(begins, place)
        if at and place < ends[at - 1]:
            return now
        if at < len(begins):
            return past + begins[at]
        return math.inf if period is None or not begins else past + period + begins[0]


class FunctionSampling(UniformSampling):
    """Lets a user's own function choose the client."""

    def __init__(self, seed: int, function: SamplingFunction, history: History) -> None:
        super().__init__(seed)
        self._function, self._history, self._views = function, history, "view" in parameters(function)

    def choose(self, idle: Sequence[int], now: float, arrival: int) -> int:
        more = {"view": self._history.view(now)} if self._views else {}
        client = self._function(tuple(idle), now, generator(self._seed, "participation", arrival), **more)
        try:
            return idle.index(client)
        except (ValueError, TypeError):
            known = f"one of the {len(idle)} idle clients"
            raise ConfigError(_checks.wrong("participation.sampling: the function", known, client)) from None


def read_traces(path: Path, clients: int, seed: int, period: float | None) -> list[list[tuple[float, float]]]:
    """Read the times at which each client is available from a CSV file with lines of client,begin,end, in virtual time.

    If the file's clients are named 0 to n - 1, and the run has n clients, client i has the times of the file's client
    i. Otherwise each client has the times of a randomly drawn client of the file. The file's clients are used equally
    often, up to one. ``period``: the latest end. None: there is no latest end. DataError: a line is invalid, or the
    file has no line. The message has the invalid line.
    """
    until = "" if period is None else f" of at most participation.period, {period:g}"
    traces = intervals(
        path, "participation.file", ("client", "begin", "end"), low=0.0, high=math.inf if period is None else period,
        what=f" with 0 <= begin < end{until}",
    )  # fmt: skip
    names = [str(client) for client in range(clients)]
    if traces.keys() != set(names):
        order, known = generator(seed, "availability").permutation(clients), list(traces)
        names = [known[int(place) % len(known)] for place in order]
    return [traces[name] for name in names]


def _joined(trace: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the sorted begins and ends of a client's spans of time. Spans that touch or overlap are joined."""
    begins, ends = list[float](), list[float]()
    for begin, end in sorted(trace):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends


class ClientPool:
    """Chooses the clients that get the model. At most ``concurrency`` (M_c) clients train at the same time. After each
    arrival ``rule`` draws an idle client, which gets the model. The default rule is UniformSampling.

    A client that has just answered is idle, and can be drawn again (FedBuff, FADAS, CA2FL, FedEcho). Without
    ``concurrency`` a client gets the new model when it answers (ACE, AsyncFedED), or as soon as it is available.
    """

    def __init__(self, clients: int, concurrency: int | None, seed: int, rule: UniformSampling | None = None) -> None:
        self._rule, self._arrivals = rule or UniformSampling(seed), 0
        self.room = clients if concurrency is None else concurrency
        self._idle = list(range(clients))
        self._first: list[int] = []
        self._resting: list[int] = []
        if type(self._rule) is UniformSampling:  # the first clients come from one order, not from the rule's draws
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
        # Exchanging the client with the last client of the list makes the client's removal O(1).
        self._idle[slot], self._idle[-1] = self._idle[-1], self._idle[slot]
        return self._idle.pop()

    def back(self, client: int, *, rests: bool = False) -> None:
        (self._resting if rests else self._idle).append(client)
        self.room += 1

    def wake(self) -> None:
        self._idle += self._resting
        self._resting.clear()

    def drop(self, gone: Collection[int], flying: int) -> None:
        # Other clients take the places of the clients ``gone``. So M_c clients train as long as enough clients remain.
        self._idle = [client for client in self._idle if client not in gone]
        self._resting = [client for client in self._resting if client not in gone]
        self.room += flying

    def state_dict(self) -> State:
        idle = {"idle": list(self._idle), "resting": list(self._resting)}
        return {"arrivals": self._arrivals, **idle, "room": self.room}

    def load_state_dict(self, state: State) -> None:
        self._arrivals, self._idle, self._first = state["arrivals"], list(state["idle"]), []
        self._resting, self.room = list(state["resting"]), state["room"]
