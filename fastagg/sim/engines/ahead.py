"""What is trained before it is due.

The event queue says which update arrives next; this hands it over. A job can be trained from the moment it is sent out,
so an engine of several workers is given jobs as soon as they are known, those that are due first before the others.
An update does not depend on when it is trained, nor on who shares its stack. A checkpoint holds what is trained in
stacks all the same, because training it again takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from fastagg.sim.client import Update
from fastagg.sim.schedule import Job

Key = tuple[int, int]  # a client and the number of its dispatch


class Engine(Protocol):
    """Trains groups of jobs.

    Attributes:
        parts: how many groups it trains at once.
        eager: whether it trains meanwhile, so that it should know jobs early.
    """

    parts: int
    eager: bool

    def submit(self, jobs: Sequence[Job]) -> int:
        """Have a group trained; return its number."""

    def collect(self, wait: bool) -> list[tuple[int, list[Update]]]:
        """Return the numbers and updates of groups that are trained; with ``wait`` one or more.

        RunFailed if training failed.
        """

    def keep(self, versions: Collection[int]) -> None:
        """Forget the weights of all versions but these."""

    def close(self) -> None: ...


class Ahead:
    """Updates that are trained, or being trained, and not due yet.

    Args:
        engine: trains.
        stack: how many jobs share a stack; None: they train one by one.
        most: how many jobs may be trained before they are due, one by one.
    """

    def __init__(self, engine: Engine, stack: int | None, most: int = 0) -> None:
        self._engine, self._stack, self._most = engine, stack, most
        self.ready: dict[Key, Update] = {}
        self._out: dict[Key, int] = {}  # the group that each is in
        self._groups: dict[int, list[Key]] = {}

    def ask(self, job: Job | None, in_flight: Callable[[], list[Job]]) -> bool:
        """Have ``job`` trained in a stack, if there are stacks. Return whether its update is not ready.

        It is the job that is due next, if that is known; the first of ``in_flight``.
        """
        if self._stack is None or job is None or _key(job) in self.ready:
            return False
        if _key(job) not in self._out:
            self._submit_stacks([other for other in in_flight() if not self._known(_key(other))])
        return True

    def take(self, job: Job, in_flight: Callable[[], list[Job]]) -> Update:
        """Return the update of ``job``, which is due. ``in_flight``: the jobs that are due later, the next first."""
        key = _key(job)
        if not self._known(key):
            if self._stack is None:
                self._submit([job])
                self._fill(in_flight)
            else:
                self._submit_stacks([job, *(other for other in in_flight() if not self._known(_key(other)))])
        while key not in self.ready:
            self._collect(wait=True)
        return self.ready.pop(key)

    def look(self, in_flight: Callable[[], list[Job]]) -> None:
        """Hand jobs that have been sent out to an engine that trains meanwhile."""
        if not self._engine.eager:
            return
        self._fill(in_flight)
        self._collect(wait=False)

    def forget(self, clients: Collection[int]) -> None:
        """These clients' updates will not be received."""
        self.ready = {key: update for key, update in self.ready.items() if key[0] not in clients}
        self._out = {key: group for key, group in self._out.items() if key[0] not in clients}

    def state_dict(self) -> list[tuple[int, int, Update]]:
        """Return what a checkpoint should hold: what stacks have trained. One by one little is trained early."""
        if self._stack is None:
            return []
        while self._out:
            self._collect(wait=True)
        return [(*key, update) for key, update in self.ready.items()]

    def load_state_dict(self, state: list[tuple[int, int, Update]]) -> None:
        self.ready = {(client, number): update for client, number, update in state}

    def close(self) -> None:
        self._engine.close()

    def _known(self, key: Key) -> bool:
        return key in self.ready or key in self._out

    def _fill(self, in_flight: Callable[[], list[Job]]) -> None:
        if not self._engine.eager:
            return
        jobs = in_flight()
        self._engine.keep({job.task.version for job in jobs})
        if self._stack is not None:
            return
        for job in jobs[: self._most]:
            if not self._known(_key(job)) and len(self.ready) + len(self._out) < 2 * self._most:
                self._submit([job])

    def _submit_stacks(self, jobs: Sequence[Job]) -> None:
        assert self._stack is not None
        parts = self._engine.parts
        jobs = jobs[: self._stack * parts]
        for part in range(min(parts, len(jobs))):
            self._submit(jobs[part::parts])

    def _submit(self, jobs: Sequence[Job]) -> None:
        group = self._engine.submit(jobs)
        self._groups[group] = [_key(job) for job in jobs]
        self._out.update(dict.fromkeys(self._groups[group], group))

    def _collect(self, wait: bool) -> None:
        for group, updates in self._engine.collect(wait):
            for key, update in zip(self._groups.pop(group), updates, strict=True):
                if self._out.get(key) == group:  # nobody has forgotten it meanwhile
                    del self._out[key]
                    self.ready[key] = update


def _key(job: Job) -> Key:
    return job.client, job.number
