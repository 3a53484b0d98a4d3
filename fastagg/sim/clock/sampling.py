"""Who trains next in asynchronous federated learning.

room                       how many more clients may get the model now
soonest(now) -> float      when the next idle client may get it; infinite: never
draw(now) -> int           the client that gets it then
back(client)               it has answered, and is idle
drop(gone, flying)         the clients ``gone`` never answer again; ``flying`` of them are training

Which idle client that is, is drawn evenly, as their availability allows, or by a function.

A sampling rule has two methods:

    choose(idle, now, arrival) -> int   the place in ``idle`` of the client that gets the model at the time ``now``
    opens(client, now) -> float         when, from ``now`` on, the client may get it; infinite if never

Draws are keyed by (seed, arrival), see seeds.py.
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

# Takes the idle clients, the virtual time and a generator of this draw, and perhaps a view; returns one of the clients.
SamplingFunction = Callable[..., int]


class UniformSampling:
    """Every idle client alike (FedBuff, FADAS, CA2FL, FedEcho)."""

    always = True  # every client may always get the model

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, idle: Sequence[int], now: float, arrival: int) -> int:
        return below(len(idle), self._seed, "participation", arrival)

    def opens(self, client: int, now: float) -> float:
        return now


class AvailabilitySampling(UniformSampling):
    """Evenly among the clients that are available, by a trace of the times at which each of them is.

    Args:
        traces: for each client the ``(begin, end)`` of its times, which begin with 0. A client that is sent the model
            may answer when it is not available any more.
        period: the traces begin again after so much time; None: they do not.
    """

    always = False

    def __init__(self, seed: int, traces: Sequence[Sequence[tuple[float, float]]], period: float | None) -> None:
        super().__init__(seed)
        self._begins, self._ends = zip(*(_joined(trace) for trace in traces), strict=True)
        self._period = period

    def opens(self, client: int, now: float) -> float:
        begins, ends, period = self._begins[client], self._ends[client], self._period
        # A period that has gone by and a time in it round to just before their sum, where the client is there, too.
        place = now + 4 * math.ulp(max(now, period or 0.0, *ends[-1:]))
        past, place = (0.0, place) if period is None else (place - place % period, place % period)
        at = bisect_right(begins, place)
        if at and place < ends[at - 1]:
            return now
        if at < len(begins):
            return past + begins[at]
        return math.inf if period is None or not begins else past + period + begins[0]


class FunctionSampling(UniformSampling):
    """By a function of the user's own."""

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

    If the file names its clients 0 to n - 1, client i has the times of i. Otherwise each has those of one in the file,
    drawn evenly. DataError, with the line, if a time is none, or no client is ever available.
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
    """Return begins and ends of a client's times, in order, those that touch as one."""
    begins, ends = list[float](), list[float]()
    for begin, end in sorted(trace):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            begins.append(begin)
            ends.append(end)
    return begins, ends


class ClientPool:
    """M_c = ``concurrency`` clients train at once. After each arrival an idle one, drawn by ``rule``, gets the model.

    The client that has just answered is idle too and can be drawn again (FedBuff, FADAS, CA2FL, FedEcho). Without
    ``concurrency`` all clients train all the time, so each gets the new model when it answers (ACE, AsyncFedED), or as
    soon as it is available.
    """

    def __init__(self, clients: int, concurrency: int | None, seed: int, rule: UniformSampling | None = None) -> None:
        self._rule, self._arrivals = rule or UniformSampling(seed), 0
        self.room = clients if concurrency is None else concurrency
        self._idle = list(range(clients))
        self._first: list[int] = []
        self._resting: list[int] = []
        if type(self._rule) is UniformSampling:  # the first are taken from one order, and are no draws
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

    def back(self, client: int, *, rests: bool = False) -> None:
        """A client has answered. One that ``rests`` is not drawn before :meth:`wake`."""
        (self._resting if rests else self._idle).append(client)
        self.room += 1

    def wake(self) -> None:
        """There is a new version: those that rest can be drawn."""
        self._idle += self._resting
        self._resting.clear()

    def drop(self, gone: Collection[int], flying: int) -> None:
        # Other clients replace those that never answer, so M_c clients train while enough remain.
        self._idle = [client for client in self._idle if client not in gone]
        self._resting = [client for client in self._resting if client not in gone]
        self.room += flying

    def state_dict(self) -> State:
        idle = {"idle": list(self._idle), "resting": list(self._resting)}
        return {"arrivals": self._arrivals, **idle, "room": self.room}

    def load_state_dict(self, state: State) -> None:
        self._arrivals, self._idle, self._first = state["arrivals"], list(state["idle"]), []
        self._resting, self.room = list(state["resting"]), state["room"]
