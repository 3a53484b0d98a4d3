"""Who trains a job: this thread, when its update is due, or threads of the extension, from the moment it is sent.

The event queue says which update arrives next; this hands it over. An update does not depend on when it is trained.
What clients keep between dispatches (``DifferenceSender``) stays with the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from fastagg._build import native
from fastagg.model import ModelState
from fastagg.sim.clients.client import LocalTrainer, Update
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.clock.schedule import Job
from fastagg.sim.data.federated import FederatedData

Key = tuple[int, int]  # a client and the number of its dispatch
Begun = tuple[ModelState, native.Training | None]


class Ahead:
    """Trains jobs.

    Args:
        trainer: with ``threads`` it must be a FusedTrainer.
        threads: how many train beside the caller, who trains an update that is due and that nobody has begun.
        most: how many jobs may be trained before they are due.
    """

    def __init__(
        self, trainer: LocalTrainer | FusedTrainer, data: FederatedData, gradients: bool, threads: int, most: int
    ) -> None:
        self._trainer, self._data, self._gradients, self._most = trainer, data, gradients, most
        self._crew = native.Crew(threads) if threads else None
        self.out: dict[Key, Begun] = {}  # trained, or being trained, and not due yet

    def take(self, job: Job, in_flight: Callable[[], list[Job]]) -> Update:
        """Return the update of ``job``, which is due. ``in_flight``: the jobs that are due later, the next first."""
        if self._crew is None:
            train = self._trainer.gradient if self._gradients else self._trainer.train
            return train(job.task, self._data.clients[job.client], job.client, job.number)
        begun = self.out.pop((job.client, job.number), None)
        if begun is None:
            begun = self._begin(job)
            self.look(in_flight)
        update, training = begun
        if training is not None:
            training.wait()
        return update

    def look(self, in_flight: Callable[[], list[Job]]) -> None:
        """Have jobs trained that have been sent out."""
        for job in in_flight()[: self._most] if self._crew else ():
            if (job.client, job.number) not in self.out and len(self.out) < 2 * self._most:
                self.out[job.client, job.number] = self._begin(job)

    def _begin(self, job: Job) -> Begun:
        assert isinstance(self._trainer, FusedTrainer)
        samples = self._data.clients[job.client]
        return self._trainer.begin(job.task, samples, job.client, job.number, self._crew, self._gradients)

    def forget(self, clients: Collection[int]) -> None:
        """These clients' updates will not be received."""
        self.out = {key: begun for key, begun in self.out.items() if key[0] not in clients}

    def close(self) -> None:
        self.out.clear()
        self._crew = None  # its threads end
