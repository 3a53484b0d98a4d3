"""Local training as a pure function of weights, client and seed: what an engine has done, in whatever process.

The number of a client's dispatch and the local steps that it was told belong to it, too. What clients keep between
dispatches (``DifferenceSender``) stays with the simulation.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import ConfigError
from fastagg.model import Layout
from fastagg.server.dispatch import Dispatch
from fastagg.sim import build
from fastagg.sim.batched import BatchedTrainer
from fastagg.sim.client import LocalTrainer, Update
from fastagg.sim.config import Config
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.engines.packing import Packing
from fastagg.sim.engines.workers import Line
from fastagg.sim.schedule import Job


class Training:
    """Trains jobs on one module, in one stack where there is a ``batched`` trainer, and else one by one."""

    def __init__(
        self, trainer: LocalTrainer, data: FederatedData, batched: BatchedTrainer | None, *, gradients: bool
    ) -> None:
        self.batched = batched
        self._clients = data.clients
        self._work = trainer.gradient if gradients else trainer.train

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """Return the jobs' updates, in their order, in the form ``Server.receive`` takes."""
        if self.batched is not None:
            return self.batched.train(jobs)
        return [self._work(job.task, self._clients[job.client], job.client, job.number) for job in jobs]


@dataclass(frozen=True)
class Plan:
    """What another process builds the same training from.

    Attributes:
        config: of the run.
        gradients: whether clients send one gradient instead of a delta.
        batched: whether clients train in stacks.
        given: data and model that a program passed, each pickled (see :func:`pickled`).
    """

    config: Config
    gradients: bool
    batched: bool
    given: Sequence[bytes]


def pickled(data: object, model: object, dumps: Callable[[object], bytes]) -> list[bytes]:
    """Return what a program passed to ``run``, for other processes. ConfigError naming what cannot be sent."""
    found = []
    for name, what in (("data", data), ("model", model)):
        try:
            found.append(dumps(what))
        except Exception as error:  # whatever an object raises that does not want to be pickled
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(
                f"{name}: what was passed cannot be sent to other processes ({reason}). Use functions of a module "
                'instead of lambdas, or engine "here"'
            ) from None
    return found


class Errand(NamedTuple):
    """A job without its weights, which are the ``place``-th of those that go with the errands."""

    client: int
    number: int
    version: int
    local_steps: int | None
    place: int


def begin(plan: Plan) -> Callable[[Sequence[Errand], Sequence[Tensor], Line], list[np.ndarray]]:
    """Build data and module, in a process of its own, and return what trains errands: their updates, as NumPy."""
    config = plan.config
    torch.set_num_threads(config.run.torch_threads)
    data, model = map(pickle.loads, plan.given)
    if data is None:
        data = build.build_data(config.data, config.seed)
    module = build.build_module(config, data, model, torch.device("cpu"))
    work, layout = build.build_work(config), Layout.of(module)
    batched: BatchedTrainer | None = None
    if plan.batched:
        batched = BatchedTrainer(module, work, config.seed, data.clients, gradients=plan.gradients)
    training = Training(LocalTrainer(module, work, config.seed), data, batched, gradients=plan.gradients)
    packing = Packing(layout)

    def do(errands: Sequence[Errand], weights: Sequence[Tensor], line: Line) -> list[np.ndarray]:
        models = [packing.unpack(vector) for vector in weights]
        jobs = [
            Job(e.client, e.number, Dispatch(e.client, e.version, e.local_steps, None, layout, models[e.place]))
            for e in errands
        ]
        return [packing.pack_update(update).numpy() for update in training.train(jobs)]

    return do
