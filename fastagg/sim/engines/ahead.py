"""What is trained before it is due.

The event queue says which update arrives next; this hands it over. A job can be trained from the moment it is sent out,
so an engine of several workers is given jobs as soon as they are known, those that are due first before the others.
An update does not depend on when it is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from fastagg.errors import RunFailed
from fastagg.sim.clients.client import Update
from fastagg.sim.clock.schedule import Job
from fastagg.sim.engines.training import Errand, Work
from fastagg.sim.engines.workers import Failure, Workers

Key = tuple[int, int]  # a client and the number of its dispatch
InFlight = Callable[[], list[Job]]  # the jobs that are due later, the next first
TRIES = 3  # how many workers may die of the same job


class Here:
    """Trains an update when it is due."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def take(self, job: Job, in_flight: InFlight) -> Update:
        return self._work(job)

    def look(self, in_flight: InFlight) -> None: ...

    def forget(self, clients: Collection[int]) -> None: ...

    def close(self) -> None: ...


class Ahead:
    """Updates that are trained, or being trained, and not due yet.

    Args:
        engine: trains.
        most: how many jobs may be trained before they are due.
    """

    def __init__(self, engine: Threads | Remote, most: int) -> None:
        self._engine, self._most = engine, most
        self.out: dict[Key, Future[Any]] = {}

    def take(self, job: Job, in_flight: InFlight) -> Update:
        """Return the update of ``job``, which is due."""
        future = self.out.pop((job.client, job.number), None)
        if future is None:
            future = self._engine.submit(job)
            self.look(in_flight)
        return self._engine.result(job, future)

    def look(self, in_flight: InFlight) -> None:
        """Hand jobs that have been sent out to the engine. It keeps the weights that they need."""
        jobs = in_flight()
        self._engine.keep({job.begin.version for job in jobs})
        for job in jobs[: self._most]:
            if (job.client, job.number) not in self.out and len(self.out) < 2 * self._most:
                self.out[job.client, job.number] = self._engine.submit(job)

    def forget(self, clients: Collection[int]) -> None:
        """These clients' updates will not be received."""
        self.out = {key: future for key, future in self.out.items() if key[0] not in clients}

    def close(self) -> None:
        self._engine.close()


class Threads:
    """Trains as many clients at once as it has threads. Their work must be safe to do so."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="fastagg-client")

    def submit(self, job: Job) -> Future[Any]:
        return self._pool.submit(self._work, job)

    def result(self, job: Job, future: Future[Any]) -> Update:
        return future.result()

    def keep(self, versions: Collection[int]) -> None:
        """Nothing: weights are the server's own."""

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class Remote:
    """Trains in other processes. Weights go to them once per version, updates come back as NumPy.

    A job whose worker dies is trained again by another one. Training is a pure function, so nobody can tell.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._weights: dict[int, object] = {}  # by version, as the workers know them

    def submit(self, job: Job) -> Future[Any]:
        if (version := job.begin.version) not in self._weights:
            flat, buffers, counters = job.begin.state_dict()["model"]
            self._weights[version] = self._workers.put(
                (flat.numpy(), buffers.numpy(), [counter.numpy() for counter in counters])
            )
        errand = Errand(job.client, job.number, version, job.task.local_steps)
        return self._workers.submit(errand, self._weights[version])

    def result(self, job: Job, future: Future[Any]) -> Update:
        """Return the update of a job that was submitted. RunFailed if training failed."""
        client, deaths = f"client {job.client} (dispatch {job.number})", 0
        while True:
            try:
                found = self._workers.read(future)
            except Exception as error:  # a worker's own exceptions come as a Failure
                # A job that died with another's worker is trained again alone, so it does not die so often.
                deaths += 1
                if deaths == TRIES:
                    how = " ".join(str(error).split())[:300]
                    raise RunFailed(f"{TRIES} workers died while they trained {client}, the last one: {how}") from None
                future = self.submit(job)
                continue
            if isinstance(found, Failure):
                raise found.error(f"training of {client}")
            if isinstance(found, dict):
                return {name: _tensor(array) for name, array in found.items()}
            return _tensor(found)

    def keep(self, versions: Collection[int]) -> None:
        """Forget the weights of all versions but these."""
        self._weights = {version: held for version, held in self._weights.items() if version in versions}

    def close(self) -> None:
        self._workers.close()
        self._weights.clear()


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.require(array, requirements="W"))  # Ray's are not to be written to
