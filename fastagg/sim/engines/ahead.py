"""What is trained before it is due.

The event queue says which update arrives next; this hands it over. A job can be trained from the moment it is sent out,
so an engine of several workers is given jobs as soon as they are known, those that are due first before the others.
An update does not depend on when it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from fastagg.sim.client import Update
from fastagg.sim.schedule import Job

Key = tuple[int, int]  # a client and the number of its dispatch


class Engine(Protocol):
    """Trains jobs.

    Attributes:
        parts: how many it trains at once.
        eager: whether it trains meanwhile, so that it should know jobs early.
    """

    parts: int
    eager: bool

    def submit(self, job: Job) -> int:
        """Have a job trained; return its ticket."""

    def collect(self, wait: bool) -> list[tuple[int, Update]]:
        """Return the tickets and updates of jobs that are trained; with ``wait`` one or more.

        RunFailed if training failed.
        """

    def keep(self, versions: Collection[int]) -> None:
        """Forget the weights of all versions but these."""

    def close(self) -> None: ...


class Ahead:
    """Updates that are trained, or being trained, and not due yet.

    Args:
        engine: trains.
        most: how many jobs may be trained before they are due.
    """

    def __init__(self, engine: Engine, most: int = 0) -> None:
        self._engine, self._most = engine, most
        self.ready: dict[Key, Update] = {}
        self._out: dict[Key, int] = {}  # the ticket of each
        self._keys: dict[int, Key] = {}

    def take(self, job: Job, in_flight: Callable[[], list[Job]]) -> Update:
        """Return the update of ``job``, which is due. ``in_flight``: the jobs that are due later, the next first."""
        key = _key(job)
        if not self._known(key):
            self._submit(job)
            self._fill(in_flight)
        while key not in self.ready:
            self._collect(wait=True)
        return self.ready.pop(key)

    def look(self, in_flight: Callable[[], list[Job]]) -> None:
        """Hand jobs that have been sent out to an engine that trains meanwhile."""
        if self._engine.eager:
            self._fill(in_flight)
            self._collect(wait=False)

    def forget(self, clients: Collection[int]) -> None:
        """These clients' updates will not be received."""
        self.ready = {key: update for key, update in self.ready.items() if key[0] not in clients}
        self._out = {key: ticket for key, ticket in self._out.items() if key[0] not in clients}

    def close(self) -> None:
        self._engine.close()

    def _known(self, key: Key) -> bool:
        return key in self.ready or key in self._out

    def _fill(self, in_flight: Callable[[], list[Job]]) -> None:
        if not self._engine.eager:
            return
        jobs = in_flight()
        self._engine.keep({job.task.version for job in jobs})
        for job in jobs[: self._most]:
            if not self._known(_key(job)) and len(self.ready) + len(self._out) < 2 * self._most:
                self._submit(job)

    def _submit(self, job: Job) -> None:
        ticket = self._engine.submit(job)
        self._keys[ticket] = _key(job)
        self._out[_key(job)] = ticket

    def _collect(self, wait: bool) -> None:
        for ticket, update in self._engine.collect(wait):
            key = self._keys.pop(ticket)
            if self._out.get(key) == ticket:  # nobody has forgotten it meanwhile
                del self._out[key]
                self.ready[key] = update


def _key(job: Job) -> Key:
    return job.client, job.number
