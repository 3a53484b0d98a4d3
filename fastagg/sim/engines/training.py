"""Local training as a pure function of weights, client and seed: what an engine has done, in whatever process.

The number of a client's dispatch and the local steps that it was told belong to it, too. What clients keep between
dispatches (``DifferenceSender``) stays with the simulation.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import ConfigError
from fastagg.model import Layout, ModelState
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.client import LocalTrainer, Update
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.clients.own import chosen
from fastagg.sim.clock.schedule import Job
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.one import build
from fastagg.sim.recipes.config import Config

Work = Callable[[Job], Update]


def work_of(trainer: LocalTrainer | FusedTrainer, data: FederatedData, *, gradients: bool) -> Work:
    """Return what trains a job: its update, in the form ``Server.receive`` takes."""
    train = trainer.gradient if gradients else trainer.train
    return lambda job: train(job.begin, data.clients[job.client], job.client, job.number)


@dataclass(frozen=True)
class Plan:
    """What another process builds the same training from.

    Attributes:
        config: of the run.
        gradients: whether clients send one gradient instead of a delta.
        given: data, model and functions that a program passed, each pickled (see :func:`pickled`).
    """

    config: Config
    gradients: bool
    given: Sequence[bytes]


def pickled(data: object, model: object, own: object, dumps: Callable[[object], bytes]) -> list[bytes]:
    """Return what a program passed to ``run``, for other processes. ConfigError naming what cannot be sent."""
    found = []
    for name, what in (("data", data), ("model", model), ("own", own)):
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
    """A job without its weights, which go with it."""

    client: int
    number: int
    version: int
    local_steps: int | None


def begin(plan: Plan) -> Callable[[Errand, Any], Any]:
    """Build data and module, in a process of its own, and return what trains an errand: its update, as NumPy."""
    config = plan.config
    torch.set_num_threads(config.run.torch_threads)
    data, model, given = map(pickle.loads, plan.given)
    if data is None:
        data = build.build_data(config.data, config.seed)
    data = data.held_out(config.run.client_test, config.seed)
    module = build.build_module(config, data, model, torch.device("cpu"))
    layout = Layout.of(module)
    trainer, _ = build.build_trainer(config, module, data, chosen(config.own, given))
    work = work_of(trainer, data, gradients=plan.gradients)

    def do(errand: Errand, weights: tuple[np.ndarray, np.ndarray, list[np.ndarray]]) -> Any:
        # copies: where Ray keeps arrays nobody may write
        flat, buffers, *counters = (torch.tensor(array) for array in (*weights[:2], *weights[2]))
        task = Dispatch(
            errand.client, errand.version, errand.local_steps, None, layout, ModelState(flat, buffers, counters)
        )
        update = work(Job(errand.client, errand.number, task))
        if isinstance(update, Tensor):
            return update.numpy()
        return {name: (a.float() if a.dtype is torch.bfloat16 else a).numpy() for name, a in update.items()}

    return do
