"""The engine of other processes: weights go to them once per version, updates come back as NumPy.

A job whose worker dies is trained again by another one. Training is a pure function, so nobody can tell.
"""

from __future__ import annotations

from collections.abc import Collection
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

TRIES = 3  # how many workers may die of the same job


class _Sent(NamedTuple):
    number: int
    errand: Errand
    weights: object  # as the workers know them
    deaths: int = 0


class Remote:
    eager = True

    def __init__(self, workers: Crew, layout: Layout) -> None:
        self._workers, self._packing = workers, Packing(layout)
        self.parts = workers.count
        self._weights: dict[int, object] = {}  # by version
        self._out: dict[int, _Sent] = {}  # by the workers' ticket
        self._jobs = 0

    def submit(self, job: Job) -> int:
        if (version := job.task.version) not in self._weights:
            self._weights[version] = self._workers.put(self._packing.pack(*job.task.state_dict()["model"]))
        self._jobs += 1
        errand = Errand(job.client, job.number, version, job.task.local_steps)
        self._send(_Sent(self._jobs, errand, self._weights[version]))
        return self._jobs

    def collect(self, wait: bool) -> list[tuple[int, Update]]:
        found: list[tuple[int, Update]] = []
        while not found:
            for event in self._workers.wait(None if wait else 0.0):
                sent = self._out.pop(event.ticket)
                if event.kind == "done":
                    vector = torch.from_numpy(np.require(event.value, requirements="W"))
                    found.append((sent.number, self._packing.unpack_update(vector)))
                else:
                    self._again(sent, event)
            if not wait:
                break
        return found

    def keep(self, versions: Collection[int]) -> None:
        held = {sent.errand.version for sent in self._out.values()}.union(versions)
        for version in self._weights.keys() - held:
            del self._weights[version]

    def close(self) -> None:
        self._workers.close()
        self._weights.clear()

    def _send(self, sent: _Sent) -> None:
        self._out[self._workers.submit(sent.errand, [sent.weights])] = sent

    def _again(self, sent: _Sent, event: Event) -> None:
        """Have a job trained by another worker; RunFailed if it raised, or kills one worker after another."""
        client = f"client {sent.errand.client} (dispatch {sent.errand.number})"
        if event.kind == "failed":
            raise event.value.error(f"training of {client}")
        sent = sent._replace(deaths=sent.deaths + 1)
        if sent.deaths == TRIES:
            raise RunFailed(f"{TRIES} workers died while they trained {client}, the last one: {event.value}")
        self._send(sent)
