"""The engine of other processes: weights go to them once per version, updates come back as NumPy.

A group whose worker dies is trained again by another one. Training is a pure function, so nobody can tell.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fastagg.errors import RunFailed
from fastagg.model import Layout
from fastagg.sim.client import Update
from fastagg.sim.engines.crew import Crew
from fastagg.sim.engines.packing import Packing
from fastagg.sim.engines.training import Errand
from fastagg.sim.engines.workers import Event
from fastagg.sim.schedule import Job

TRIES = 3  # how many workers may die of the same group


class _Group(NamedTuple):
    number: int
    errands: list[Errand]
    versions: list[int]
    weights: list[object]  # as the workers know them
    deaths: int = 0


class Remote:
    eager = True

    def __init__(self, workers: Crew, layout: Layout) -> None:
        self._workers, self._packing = workers, Packing(layout)
        self.parts = workers.count
        self._weights: dict[int, object] = {}  # by version
        self._out: dict[int, _Group] = {}  # by the workers' ticket
        self._groups = 0

    def submit(self, jobs: Sequence[Job]) -> int:
        versions = sorted({job.task.version for job in jobs})
        for job in jobs:
            if (version := job.task.version) not in self._weights:
                self._weights[version] = self._workers.put(self._packing.pack(*job.task.state_dict()["model"]))
        errands = [
            Errand(job.client, job.number, job.task.version, job.task.local_steps, versions.index(job.task.version))
            for job in jobs
        ]
        self._groups += 1
        self._send(_Group(self._groups, errands, versions, [self._weights[version] for version in versions]))
        return self._groups

    def collect(self, wait: bool) -> list[tuple[int, list[Update]]]:
        found: list[tuple[int, list[Update]]] = []
        while not found:
            for event in self._workers.wait(None if wait else 0.0):
                group = self._out.pop(event.ticket)
                if event.kind == "done":
                    vectors = [torch.from_numpy(np.require(vector, requirements="W")) for vector in event.value]
                    found.append((group.number, [self._packing.unpack_update(vector) for vector in vectors]))
                else:
                    self._again(group, event)
            if not wait:
                break
        return found

    def keep(self, versions: Collection[int]) -> None:
        held = {version for group in self._out.values() for version in group.versions}.union(versions)
        for version in self._weights.keys() - held:
            del self._weights[version]

    def close(self) -> None:
        self._workers.close()
        self._weights.clear()

    def _send(self, group: _Group) -> None:
        self._out[self._workers.submit(group.errands, group.weights)] = group

    def _again(self, group: _Group, event: Event) -> None:
        """Have a group trained by another worker; RunFailed if it raised, or kills one worker after another."""
        clients = ", ".join(f"{e.client} (dispatch {e.number})" for e in group.errands[:3])
        if len(group.errands) > 3:
            clients += f" and {len(group.errands) - 3} more"
        if event.kind == "failed":
            raise event.value.error(f"training of client {clients}")
        group = group._replace(deaths=group.deaths + 1)
        if group.deaths == TRIES:
            raise RunFailed(f"{TRIES} workers died while they trained client {clients}, the last one: {event.value}")
        self._send(group)
