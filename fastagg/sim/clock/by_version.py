"""The schedule for delays in server versions. The delays tau come from delays.VersionDelay.

One update arrives per unit of virtual time.
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
    """An update that arrives at version t was trained on version t - tau, if a client has an open task of this version.

    Every version is sent to every client. The schedule keeps the tasks of the last ``longest + 1`` versions, where
    ``longest`` is the largest tau. These tasks share memory with the server. For each arrival, a uniformly random order
    of the clients and a tau are drawn. The first client of the order with an open task of version t - tau (version 0
    while t < tau) answers this task. If no client has an open task of this version, the nearest newer version is used.
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
        # Most tasks are never answered, and the server keeps open tasks. So the clients drop all their open tasks in
        # turn, one client every `_turn` versions. This limits how many tasks the server keeps.
        self._turn = -(-4 * (self._longest + 1) // clients)

    @property
    def now(self) -> float:
        return float(self._arrivals)

    def in_flight(self) -> list[Job]:
        """Return no jobs: a job is known only when it arrives."""
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
        # If there is no open task of these versions, the current version is sent once more, to the first client.
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
