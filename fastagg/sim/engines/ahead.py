"""What is trained before it is due.

The event queue says which update arrives next; this hands it over. A job can be trained from the moment it is sent out,
so an engine of several workers is given jobs as soon as they are known, those that are due first before the others.
An update does not depend on when it is trained. What clients keep between dispatches (``DifferenceSender``) stays with
the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fastagg._build import native
from fastagg.model import ModelState
from fastagg.sim.clients.client import LocalTrainer, Update
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.clock.schedule import Job
from fastagg.sim.data.federated import FederatedData

Key = tuple[int, int]  # a client and the number of its dispatch
InFlight = Callable[[], list[Job]]  # the jobs that are due later, the next first
Begun = tuple[ModelState, native.Training | None]
Work = Callable[[Job], Update]  # local training: a pure function of weights, client, dispatch and seed


def work_of(trainer: LocalTrainer | FusedTrainer, data: FederatedData, *, gradients: bool) -> Work:
    """Return what trains a job: its update, in the form ``Server.receive`` takes."""
    train = trainer.gradient if gradients else trainer.train
    return lambda job: train(job.begin, data.clients[job.client], job.client, job.number)


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
    """Updates that are trained, or being trained, and not due yet: the base of engines that train several jobs at once.

    Args:
        most: how many jobs may be trained before they are due.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.out: dict[Key, Any] = {}  # what `submit` returned

    def submit(self, job: Job) -> Any:
        """Have a job trained."""
        raise NotImplementedError

    def result(self, job: Job, begun: Any) -> Update:
        """Return the update of a job that was submitted. RunFailed if training failed."""
        raise NotImplementedError

    def take(self, job: Job, in_flight: InFlight) -> Update:
        """Return the update of ``job``, which is due."""
        begun = self.out.pop((job.client, job.number), None)
        if begun is None:
            begun = self.submit(job)
            self.look(in_flight)
        return self.result(job, begun)

    def look(self, in_flight: InFlight) -> None:
        """Have jobs trained that have been sent out."""
        for job in in_flight()[: self._most]:
            if (job.client, job.number) not in self.out and len(self.out) < 2 * self._most:
                self.out[job.client, job.number] = self.submit(job)

    def forget(self, clients: Collection[int]) -> None:
        """These clients' updates will not be received."""
        self.out = {key: begun for key, begun in self.out.items() if key[0] not in clients}

    def close(self) -> None: ...


class Threads(Ahead):
    """Trains in threads of the extension, and in the caller's own if its update is not there when it is due."""

    def __init__(self, most: int, threads: int, trainer: FusedTrainer, data: FederatedData, gradients: bool) -> None:
        super().__init__(most)
        self._trainer, self._data, self._gradients = trainer, data, gradients
        self._crew: native.Crew | None = native.Crew(threads)

    def submit(self, job: Job) -> Begun:
        samples = self._data.clients[job.client]
        return self._trainer.begin(job.begin, samples, job.client, job.number, self._crew, self._gradients)

    def result(self, job: Job, begun: Begun) -> Update:
        update, training = begun
        if training is not None:
            training.wait()
        return update

    def close(self) -> None:
        self.out.clear()
        self._crew = None  # its threads end
