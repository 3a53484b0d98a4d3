"""Decides which update arrives next, and what the server sends afterwards.

A schedule gives the run's loop one ``Job`` at a time:

    schedule.start()          makes the first dispatches
    schedule.next_time()      returns the time at which the next update arrives
    schedule.in_flight()      returns the known jobs whose updates will arrive later
    job = schedule.next()     returns the job whose update arrives now, at the virtual time ``schedule.now``
    schedule.arrived(job)     makes the dispatches after this arrival. Call it after ``server.receive``.

    schedule.drop(clients)    removes clients. They do not answer again, except in the current synchronous round.

``state_dict`` returns the schedule as plain data and tensors. A new schedule for the same config and the loaded server
continues from this state instead of calling ``start``.

A Job holds an immutable snapshot of the model that the client was sent. So a job can be trained at any moment between
its dispatch and its arrival (clients/fused.py).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastagg._types import State
from fastagg.errors import ConfigError
from fastagg.server.dispatch import Dispatch, Download
from fastagg.server.together import answers_per_step
from fastagg.sim.clock.delays import Times
from fastagg.sim.clock.sampling import ClientPool, UniformSampling
from fastagg.sim.clock.view import History
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.server.server import Server


MOST_WAITS = 10_000  # the most times that a round's start is moved until enough clients are available at once

# Takes a client and its task. Returns the number of local steps that the client makes.
LocalSteps = Callable[[int, Dispatch], int]
# Takes a job. Returns the number of bytes of the job's model, and the number of bytes of its update.
SentBytes = Callable[["Job"], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Job:
    """One dispatch. ``number`` counts the jobs of ``client`` from 0, and is in the key of the client's random draws."""

    client: int
    number: int
    task: Dispatch

    def state_dict(self) -> State:
        return {"client": self.client, "number": self.number, "task": self.task.state_dict()}

    @classmethod
    def from_state(cls, state: State, server: Server) -> Job:
        return cls(state["client"], state["number"], Dispatch.from_state(state["task"], server.layout))


class VirtualClock:
    """Jobs ordered by virtual time. Jobs with the same time come in the order in which they were scheduled.

    ``now`` is the time of the last job that was taken out, in the unit of the delay law. At the start it is 0.0.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled = 0
        # The running number makes every entry distinct, so jobs are never compared with each other.
        self._heap: list[tuple[float, int, Job]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay: float, job: Job) -> float:
        """Schedule ``job`` at the time ``now + delay``, and return this time. ValueError: the delay is negative or not
        finite."""
        if not (delay >= 0.0 and math.isfinite(delay)):
            raise ValueError(f"a delay must be finite and at least 0, got {delay}")
        due = self.now + delay
        heapq.heappush(self._heap, (due, self._scheduled, job))
        self._scheduled += 1
        return due

    def next(self) -> Job:
        """Take the next job out and move ``now`` to the job's time. IndexError: nothing is scheduled."""
        self.now, _, job = heapq.heappop(self._heap)
        return job

    def next_time(self) -> float:
        """Return the time of the next job. IndexError: nothing is scheduled."""
        return self._heap[0][0]

    def in_flight(self) -> list[Job]:
        return [job for _, _, job in sorted(self._heap)]  # sorted by time, then by running number


class TaskClock(VirtualClock):
    """Base of the schedules in virtual time. ``delays`` has the times of tasks. ``steps`` returns a task's number of
    local steps. ``sent`` returns a job's bytes. ``format``: the encoding of sent models. None: no encoding."""

    def __init__(
        self, server: Server, delays: Times, steps: LocalSteps, sent: SentBytes, format: Download | None,
        history: History,
    ) -> None:  # fmt: skip
        super().__init__()
        self._history = history
        self.unit, self.classes, self._format = delays.unit, delays.classes, format
        self._server, self._delays, self._steps, self._bytes = server, delays, steps, sent
        self._dispatches: Counter[int] = Counter()

    def _send(self, client: int, time: float) -> tuple[float, Job]:
        """Send ``client`` the model at ``time``. Return the virtual time that the task takes, and its job. A user's own
        rule may decide the number of local steps."""
        self._history.send(client, time)
        number = self._dispatches[client]
        self._dispatches[client] += 1
        task = self._server.dispatch(client, format=self._format)
        if (local := task.extra.get("local_steps")) is not None:
            task = task.for_client(client, int(local), task.id)
        job = Job(client, number, task)
        duration = self._delays.duration(client, number, self._steps(client, task))
        duration += self._delays.sending(client, number, *self._bytes(job))
        self._history.last(client, duration)
        return duration, job

    def state_dict(self) -> State:
        heap = [(due, order, job.state_dict()) for due, order, job in self._heap]
        clock = {"now": self.now, "scheduled": self._scheduled, "heap": heap}
        return {"dispatches": dict(self._dispatches), "delays": self._delays.state_dict(), "clock": clock}

    def load_state_dict(self, state: State) -> None:
        self._dispatches = Counter(state["dispatches"])
        self._delays.load_state_dict(state["delays"])
        clock = state["clock"]
        self.now, self._scheduled = clock["now"], clock["scheduled"]
        self._heap = [(due, order, Job.from_state(job, self._server)) for due, order, job in clock["heap"]]


class TimedSchedule(TaskClock):
    """An asynchronous run. The delay law says how long a task takes. ``participation`` chooses the next client.

    With ``at_flush`` the model is sent only when its version changes or no task is open, to as many clients as have
    answered since the last sending. Without ``at_flush`` the next client gets the model after each arrival. Unless the
    arrival completes a step, this model is one version older than with ``at_flush``, so delays are larger by one.
    """

    def __init__(
        self, server: Server, delays: Times, participation: ClientPool, steps: LocalSteps, sent: SentBytes,
        history: History, format: Download | None = None, *, at_flush: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(server, delays, steps, sent, format, history)
        self._at_flush = at_flush
        self._owed: list[int] = []  # with ``at_flush``: the clients that have answered since the model was last sent
        self._sent = server.version
        self._participation = participation
        # A client with this many answers in the current step gets the model only after the step.
        self._most = answers_per_step(server.direction, server.config()) or math.inf
        self._waiting = Counter[int]()  # each client's number of answers in the current step

    def start(self) -> None:
        self._send_all()

    def arrived(self, job: Job) -> None:
        self._owed.append(job.client)
        if self._at_flush and self._server.version == self._sent and len(self):
            return
        waits = self._server.version == self._sent
        if not waits:
            self._participation.wake()
            self._waiting.clear()
        self._sent = self._server.version
        for client in self._owed:
            self._waiting[client] += waits
            self._participation.back(client, rests=self._waiting[client] >= self._most)
            self._send_all()
        self._owed.clear()

    def drop(self, clients: Collection[int]) -> None:
        lost = [job for job in self.in_flight() if job.client in clients]
        self._heap = [entry for entry in self._heap if entry[2].client not in clients]
        heapq.heapify(self._heap)
        for job in lost:
            self._server.forget(job.client, job.task.version)  # the server need not keep a task without answer
        self._participation.drop(clients, len(lost))
        self._send_all()

    def state_dict(self) -> State:
        return super().state_dict() | {
            "owed": list(self._owed),
            "sent": self._sent,
            "waiting": list(self._waiting.elements()),
            "participation": self._participation.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._owed, self._sent, self._waiting = list(state["owed"]), state["sent"], Counter(state["waiting"])
        self._participation.load_state_dict(state["participation"])

    def _send_all(self) -> None:
        """Send the current model to all clients that may get a model before the next update arrives."""
        now = self.now
        while self._participation.room:
            now = self._participation.soonest(now)
            if now == math.inf or (len(self) and now > self.next_time()):
                break
            duration, job = self._send(self._participation.draw(now), now)
            self.schedule(now - self.now + duration, job)
        if not len(self):
            raise ConfigError(
                f"no client is available after the virtual time {self.now:g}: participation.period repeats"
            )


class RoundSchedule(TaskClock):
    """Synchronous rounds of ``per_round`` clients, drawn by ``rule``. All updates of a round arrive when its slowest
    client has finished.

    The next round starts at this time, or as soon afterwards as ``per_round`` clients are available at the same time.
    With the default rule, UniformSampling, draws of clients are keyed by (seed, round). Durations are drawn as in
    asynchronous runs, so that virtual times of synchronous and asynchronous runs can be compared.
    """

    def __init__(
        self, server: Server, delays: Times, clients: int, per_round: int, seed: int, steps: LocalSteps,
        sent: SentBytes, history: History, rule: UniformSampling | None = None, format: Download | None = None,
    ) -> None:  # fmt: skip
        super().__init__(server, delays, steps, sent, format, history)
        self._clients, self._per_round, self._seed = clients, per_round, seed
        self._rule = rule or UniformSampling(seed)
        self._rounds = 0
        self._gone: set[int] = set()

    def start(self) -> None:
        here = [client for client in range(self._clients) if client not in self._gone]
        wait = self._begins(here) - self.now
        sent = [self._send(client, self.now + wait) for client in self._drawn(here, self.now + wait)]
        slowest = max(duration for duration, _ in sent)
        for _, job in sent:
            self.schedule(wait + slowest, job)
        self._rounds += 1

    def _begins(self, here: list[int]) -> float:
        """Return the first time at which ``per_round`` of the clients ``here`` are available at the same time."""
        now = self.now
        for _ in range(MOST_WAITS):
            soon = sorted(self._rule.opens(client, now) for client in here)[self._per_round - 1]
            if soon == now:
                return now
            if soon == math.inf:
                break
            now = soon
        raise ConfigError(f"after the virtual time {self.now:g} {self._per_round} clients are never available at once")

    def _drawn(self, here: list[int], now: float) -> list[int]:
        if type(self._rule) is UniformSampling:  # return the first clients of an order that is drawn for each round
            order = generator(self._seed, "round", self._rounds).permutation(self._clients)
            return [client for client in map(int, order) if client not in self._gone][: self._per_round]
        ready = [client for client in here if self._rule.opens(client, now) <= now]
        first = self._rounds * self._per_round
        return [ready.pop(self._rule.choose(ready, now, first + place)) for place in range(self._per_round)]

    def arrived(self, job: Job) -> None:
        if not len(self):
            self.start()

    def drop(self, clients: Collection[int]) -> None:
        self._gone = set(clients)  # these clients still answer in the current round, which would otherwise never end

    def state_dict(self) -> State:
        return super().state_dict() | {"rounds": self._rounds, "gone": sorted(self._gone)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._rounds, self._gone = state["rounds"], set(state["gone"])
