"""The schedule of delays that are given in versions: no virtual time passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING

from fastagg._types import State
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clock.schedule import Job
from fastagg.sim.clock.version_delay import VersionDelay
from fastagg.sim.seeds import generator

if TYPE_CHECKING:
    from fastagg.server.server import Server


class VersionSchedule:
    """One update per unit of time, from a uniformly drawn client, trained on x_{t-tau}.

    Every version is sent to every client. The tasks of the last ``longest + 1`` versions are kept (they share memory
    with the server). An arrival draws its client and tau and answers that client's task of version t - tau (version 0
    while t < tau). A task is answered once. If the drawn client has already answered it, the next client in the drawn
    order takes its place, with the same tau. If all have answered it, the nearest newer version is used.
    """

    unit = "update"

    def __init__(self, server: Server, delays: VersionDelay, clients: int, seed: int) -> None:
        self._server = server
        self._delays = delays
        self._clients = clients
        self._seed = seed
        self._arrivals = 0
        self._updates: Counter[int] = Counter()
        self._gone: set[int] = set()
        self._tasks: dict[int, dict[int, Dispatch]] = {}  # version -> client -> its task
        # The server remembers unanswered tasks, and most are never answered. So the clients take turns in dropping all
        # of theirs, each about once in four windows. This limits how many the server remembers.
        self._turn = -(-4 * (delays.longest + 1) // clients)

    @property
    def now(self) -> float:
        return float(self._arrivals)

    def in_flight(self) -> list[Job]:
        """Return nothing: each arrival draws which of the open tasks is answered."""
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
        tau = self._delays.tau(order[0], arrival)
        for version in range(max(0, current - tau), current + 1):
            holders = self._tasks.get(version, {})
            for client in order:
                if (task := holders.pop(client, None)) is not None:
                    return self._job(client, task)
        client = order[0]  # all clients have answered all their tasks; the current version can be sent once more
        return self._job(client, self._server.dispatch(client))

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
        layout = self._server.layout
        for v, held in state["tasks"].items():
            self._tasks[v] = {c: Dispatch.from_state(task, layout) for c, task in held.items()}

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
