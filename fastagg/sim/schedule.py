"""Which update arrives next, and what the server sends out afterwards.

A schedule hands the loop one ``Job`` at a time:

    schedule.start()          the first dispatches
    schedule.next_time()      when the next update arrives (it moves nothing)
    job = schedule.next()     the update that arrives now; ``schedule.now`` is the virtual time
    schedule.arrived(job)     after server.receive: dispatches that follow from it

A Job holds the immutable snapshot the client was sent, so it can be trained at any moment between its
dispatch and its arrival; the loop trains it on arrival.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fastagg.sim.clock import VirtualClock
from fastagg.sim.delays import DelayModel
from fastagg.sim.participation import Participation
from fastagg.sim.seeds import generator
from fastagg.sim.version_delay import VersionDelay

if TYPE_CHECKING:
    from fastagg.server import Dispatch, Server


@dataclass(frozen=True, slots=True)
class Job:
    """One dispatch: ``number`` counts the dispatches of ``client`` from 0 (it keys the client's random draws)."""

    client: int
    number: int
    task: Dispatch


class Schedule(Protocol):
    unit: str

    @property
    def now(self) -> float: ...

    def start(self) -> None: ...

    def next_time(self) -> float: ...

    def next(self) -> Job: ...

    def arrived(self, job: Job) -> None: ...


class TimedSchedule:
    """Clients take virtual time: the delay model says how long, the participation rule says who is next."""

    def __init__(self, server: Server, delays: DelayModel, participation: Participation) -> None:
        self.unit = delays.unit
        self._server = server
        self._delays = delays
        self._participation = participation
        self._clock: VirtualClock[Job] = VirtualClock()
        self._dispatches: Counter[int] = Counter()

    @property
    def now(self) -> float:
        return self._clock.now

    def in_flight(self) -> list[Job]:
        """Return the jobs being trained, the next to arrive first."""
        return self._clock.pending()

    def start(self) -> None:
        for client in self._participation.initial():
            self._dispatch(client)

    def next_time(self) -> float:
        return self._clock.next_time()

    def next(self) -> Job:
        return self._clock.advance()

    def arrived(self, job: Job) -> None:
        self._dispatch(self._participation.next(job.client))

    def _dispatch(self, client: int) -> None:
        number = self._dispatches[client]
        self._dispatches[client] += 1
        job = Job(client, number, self._server.dispatch(client))
        self._clock.schedule(self._delays.duration(client, number), job)


class RoundSchedule:
    """Synchronous rounds: ``per_round`` uniformly drawn clients, all received when the slowest is done.

    The next round starts at that moment. Clients are drawn from (seed, round), durations as everywhere from (seed,
    client, number), so virtual times compare with an asynchronous run's.
    """

    def __init__(self, server: Server, delays: DelayModel, clients: int, per_round: int, seed: int) -> None:
        self.unit = delays.unit
        self.now = 0.0
        self._server = server
        self._delays = delays
        self._clients = clients
        self._per_round = per_round
        self._seed = seed
        self._rounds = 0
        self._end = 0.0
        self._waiting: deque[Job] = deque()
        self._dispatches: Counter[int] = Counter()

    def in_flight(self) -> list[Job]:
        """Return the jobs of this round that were not received yet, in the order they will be."""
        return list(self._waiting)

    def start(self) -> None:
        drawn = generator(self._seed, "round", self._rounds).permutation(self._clients)[: self._per_round]
        self._rounds += 1
        self._end = self.now
        for client in map(int, drawn):
            number = self._dispatches[client]
            self._dispatches[client] += 1
            self._end = max(self._end, self.now + self._delays.duration(client, number))
            self._waiting.append(Job(client, number, self._server.dispatch(client)))

    def next_time(self) -> float:
        return self._end

    def next(self) -> Job:
        self.now = self._end
        return self._waiting.popleft()

    def arrived(self, job: Job) -> None:
        if not self._waiting:
            self.start()


class VersionSchedule:
    """One update per unit of time, from a uniformly drawn client, trained on x_{t-tau}.

    Every version is sent to every client, and the tasks of the last ``longest + 1`` versions are kept
    (snapshots shared with the server, no copies). An arrival draws its client and tau and answers that
    client's task of version t - tau (version 0 while t < tau). A task is answered once: a client that has
    used it is replaced by the next one in the drawn order, with the same tau; should all have used it, the
    nearest newer version serves.
    """

    unit = "arrival"

    def __init__(self, server: Server, delays: VersionDelay, clients: int, seed: int) -> None:
        self._server = server
        self._delays = delays
        self._clients = clients
        self._seed = seed
        self._arrivals = 0
        self._updates: Counter[int] = Counter()
        self._tasks: dict[int, dict[int, Dispatch]] = {}  # version -> client -> what it was sent
        # The server remembers unanswered tasks, and most are never answered. So the clients take turns in dropping
        # all of theirs, each about once in four windows: what is remembered stays bounded.
        self._turn = -(-4 * (delays.longest + 1) // clients)

    @property
    def now(self) -> float:
        return float(self._arrivals)

    def start(self) -> None:
        self._send(self._server.version)

    def next_time(self) -> float:
        return self.now + 1.0

    def next(self) -> Job:
        arrival, current = self._arrivals, self._server.version
        self._arrivals += 1
        order = generator(self._seed, "arrival", arrival).permutation(self._clients)
        tau = self._delays.tau(int(order[0]), arrival)
        for version in range(max(0, current - tau), current + 1):
            holders = self._tasks.get(version, {})
            for client in map(int, order):
                if (task := holders.pop(client, None)) is not None:
                    return self._job(client, task)
        client = int(order[0])  # all have used all they hold: the current version can be sent once more
        return self._job(client, self._server.dispatch(client))

    def arrived(self, job: Job) -> None:
        if self._server.version not in self._tasks:
            self._send(self._server.version)

    def _job(self, client: int, task: Dispatch) -> Job:
        number = self._updates[client]
        self._updates[client] += 1
        return Job(client, number, task)

    def _send(self, version: int) -> None:
        turn, rest = divmod(version, self._turn)
        if rest == 0 and version > 0:
            self._drop(turn % self._clients)
        self._tasks[version] = {client: self._server.dispatch(client) for client in range(self._clients)}
        self._tasks.pop(version - self._delays.longest - 1, None)

    def _drop(self, client: int) -> None:
        self._server.forget(client)
        for tasks in self._tasks.values():
            tasks.pop(client, None)
