"""The schedule of delays given in server versions: the update that arrives was trained on x_{t-tau}. No virtual time
passes. Uniform delays are from FedAsync's first tests, and exponential ones from the ACE paper (delays.VersionDelay).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from fastagg._types import State
from fastagg.server.dispatch import Dispatch, Download
from fastagg.sim.clock.delays import VersionDelay
from fastagg.sim.clock.schedule import Job
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.server.server import Server


class VersionSchedule:
    """One update per unit of time, from a uniformly drawn client, trained on x_{t-tau}.

    Every version is sent to every client. The tasks of the last ``longest + 1`` versions are kept, where ``longest`` is
    the largest tau (they share memory with the server). An arrival draws its client and tau and answers that client's
    task of version t - tau (version 0 while t < tau). A task is answered once. If the drawn client has already answered
    it, the next client in the drawn order takes its place, with the same tau. If all have answered it, the nearest
    newer version is used.
    """

    unit, classes = "update", None

    def __init__(
        self, server: Server, delay: VersionDelay, clients: int, seed: int, format: Download | None = None
    ) -> None:
        self._server, self._clients, self._seed = server, clients, seed
        self._longest, self._tau = delay.taus(seed)
        self._format = format
        self._arrivals = 0
        self._updates: Counter[int] = Counter()
        self._gone: set[int] = set()
        self._tasks: dict[int, dict[int, Dispatch]] = {}  # version -> client -> the client's open task
        # The server remembers unanswered tasks, and most are never answered. So the clients take turns in dropping all
        # their open tasks, each about once in four windows. This limits how many tasks the server remembers.
        self._turn = -(-4 * (self._longest + 1) // clients)

    @property
    def now(self) -> float:
        return float(self._arrivals)

    def in_flight(self) -> list[Job]:
        """Return no jobs, because each arrival draws the open task that is answered."""
        return []

    def start(self) -> None:
        self._send(self._server.version)

    def next_time(self) -> float:
        return self.now + 1.0

    def next(self) -> Job:
        arrival, current = self._arrivals, self._server.version
        self._arrivals += 1
        drawn = generator(self._seed, "arrival", arrival).permutation(self._clients)
        order = [client for client in map(int, drawn) if client not in self._gone]
        tau = self._tau(arrival)
        versions = [self._tasks.get(version, {}) for version in range(max(0, current - tau), current + 1)]
        open_tasks = ((client, tasks.pop(client)) for tasks in versions for client in order if client in tasks)
        # If all clients have answered all their tasks, the current version is sent once more.
        client, task = next(open_tasks, None) or (order[0], self._server.dispatch(order[0], format=self._format))
        self._updates[client] += 1
        return Job(client, self._updates[client] - 1, task)

    def arrived(self, job: Job) -> None:
        if self._server.version not in self._tasks:
            self._send(self._server.version)

    def drop(self, clients: Collection[int]) -> None:
        self._gone = set(clients)

    def state_dict(self) -> State:
        tasks = {v: {c: task.state_dict() for c, task in held.items()} for v, held in self._tasks.items()}
        return {"arrivals": self._arrivals, "updates": dict(self._updates), "tasks": tasks, "gone": sorted(self._gone)}

    def load_state_dict(self, state: State) -> None:
        self._arrivals, self._updates = state["arrivals"], Counter(state["updates"])
        self._gone = set(state["gone"])
        layout, tasks = self._server.layout, state["tasks"]
        self._tasks = {v: {c: Dispatch.from_state(task, layout) for c, task in tasks[v].items()} for v in tasks}

    def _send(self, version: int) -> None:
        turn, rest = divmod(version, self._turn)
        if rest == 0 and version > 0:
            client = turn % self._clients
            self._server.forget(client)
            for tasks in self._tasks.values():
                tasks.pop(client, None)
        clients = range(self._clients)
        self._tasks[version] = {client: self._server.dispatch(client, format=self._format) for client in clients}
        self._tasks.pop(version - self._longest - 1, None)
