"""Workers that are Ray's: on this machine, or on the cluster that ``RAY_ADDRESS`` names.

Tasks are Ray's own tasks, weights lie in its object store. On a cluster every machine needs fastagg and the run's data,
at the same places; a comparison also needs the folder of its results there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import ray
import torch
from ray.exceptions import RayTaskError

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.errors import ConfigError, RunFailed
from fastagg.model import Layout, ModelState
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.client import Update
from fastagg.sim.clients.own import chosen
from fastagg.sim.clock.schedule import Job
from fastagg.sim.engines.ahead import Ahead, InFlight, Work, work_of
from fastagg.sim.one import build

TRIES = 3  # how many workers may die of the same job


class Cluster:
    """``count`` workers with a CPU each; None: as many as the cluster, or this machine, has CPUs.

    With ``fresh`` each task has a process of its own, as its memory and its threads are, and one try.
    """

    def __init__(self, count: int | None, *, fresh: bool = False) -> None:
        self._own, self._out = not ray.is_initialized(), dict[Future[Any], Foreign]()
        if self._own:
            # Ray would have its workers look for packages in the current folder first, which may be a checkout of this
            # one whose extension was never built.
            with contextlib.chdir(sys.prefix):
                _connect(count or usable_cores())
        cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))
        if count is not None and count > cpus:
            self.close()
            raise ConfigError(f"workers is {count}, more than the {cpus} CPUs of Ray's cluster")
        self.count = count or cpus
        retries, calls = (0, 1) if fresh else (TRIES - 1, 0)
        self._task: Foreign = ray.remote(num_cpus=1, max_retries=retries, max_calls=calls)(_call)

    def submit(self, function: Callable[..., object], *given: object) -> Future[Any]:
        """Have a worker call a function of a module."""
        reference = self._task.remote(os.getcwd(), tuple(sys.path), function, *given)
        future: Future[Any] = reference.future()
        self._out = {one: held for one, held in self._out.items() if not one.done()} | {future: reference}
        return future

    def close(self) -> None:
        if self._own:
            ray.shutdown()
            return
        for future, reference in self._out.items():
            if not future.done():
                ray.cancel(reference, force=True)


def _connect(cpus: int) -> None:
    where: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation tells nobody that it runs
        where = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    ray.init(**where, log_to_driver=False, logging_level=logging.WARNING)


def _call(folder: str, paths: Sequence[str], function: Callable[..., object], *given: object) -> object:
    """Call, where the other side is, with the modules that it finds."""
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(path for path in paths if path not in sys.path)
    set_num_threads(1)  # a worker has one CPU
    return function(*given)


class Remote(Ahead):
    """Trains the clients of a run. Weights go to the workers once per version.

    A job whose worker dies is trained again by another one. Training is a pure function, so nobody can tell.

    Args:
        most: how many jobs may be trained before they are due, at least; four for each worker may.
        count: of the workers.
        plan: config, whether clients send gradients, and the data, model and functions that a program passed.
    """

    def __init__(self, most: int, count: int | None, *plan: object) -> None:
        self._workers = Cluster(count)
        super().__init__(max(4 * self._workers.count, most))
        self._weights: dict[int, Foreign] = {}  # by version
        try:
            self._plan = ray.put(plan)
        except Exception as error:  # whatever an object raises that does not want to be pickled
            self.close()
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise ConfigError(f"data, model or own: what was passed cannot be sent to Ray's workers ({why})") from None

    def submit(self, job: Job) -> Future[Any]:
        if (version := job.begin.version) not in self._weights:
            self._weights[version] = ray.put(ModelState(*job.begin.state_dict()["model"]))
        key = job.client, job.number, version, job.task.local_steps
        # in a list, which Ray does not look into: a worker needs the plan once
        return self._workers.submit(_train, [self._plan], key, self._weights[version])

    def result(self, job: Job, future: Future[Any]) -> Update:
        client = f"client {job.client} (dispatch {job.number})"
        try:
            update: Update = future.result()
        except RayTaskError as error:
            failed = RunFailed(f"training of {client}: {type(error.cause).__name__}: {str(error.cause)[:400]}")
            failed.add_note(f"The worker's own traceback:\n{error}")
            raise failed from None
        except Exception as error:
            how = " ".join(str(error).split())[:300]
            raise RunFailed(f"{TRIES} workers died while they trained {client}, the last one: {how}") from None
        return update

    def look(self, in_flight: InFlight) -> None:
        versions = {job.begin.version for job in in_flight()}
        self._weights = {version: held for version, held in self._weights.items() if version in versions}
        super().look(in_flight)

    def close(self) -> None:
        self._weights.clear()
        self._workers.close()


@lru_cache(maxsize=4)  # simulations side by side
def _begun(plan: Foreign) -> tuple[Work, Layout]:
    """Build data and module in a process of its own."""
    config, gradients, data, model, own = ray.get(plan)
    torch.set_num_threads(config.run.torch_threads)
    if data is None:
        data = build.build_data(config.data, config.seed)
    data = build.clients_of(config, data)
    module = build.build_module(config, data, model, torch.device("cpu"))
    trainer, _ = build.build_trainer(config, module, data, chosen(config, own))
    return work_of(trainer, data, gradients=gradients), Layout.of(module)


def _train(plan: Sequence[Foreign], key: tuple[int, int, int, int | None], state: ModelState) -> Update:
    (client, number, version, steps), (work, layout) = key, _begun(plan[0])
    return work(Job(client, number, Dispatch(client, version, steps, None, layout, state)))
