"""Workers that are Ray's actors: on this machine, or on the cluster that ``RAY_ADDRESS`` names.

Arrays lie in Ray's object store. On a cluster every machine needs fastagg and the run's data, at the same places; a
comparison also needs the folder of its results there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayActorError
from torch import Tensor

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.errors import ConfigError
from fastagg.sim.engines.crew import Crew, News, Order, Worker
from fastagg.sim.engines.workers import Begin, Failure, Sent

ASK = 0.5  # seconds between two questions of how far a task is


def dumps(value: object) -> bytes:
    found: bytes = cloudpickle.dumps(value)
    return found


class _Actor(Worker):
    def __init__(self, actor: Foreign) -> None:
        super().__init__()
        self.actor = actor
        self.answers: dict[Foreign, str] = {
            actor.begun.remote(): "ready"
        }  # what was asked, by the reference of the answer


class Cluster(Crew[_Actor]):
    """``count`` actors with a CPU each; None: as many as the cluster, or this machine, has CPUs."""

    def __init__(self, count: int | None, begin: Begin, *given: Sent, fresh: bool = False) -> None:
        self._own = not ray.is_initialized()
        if self._own:
            # Ray would have its workers look for packages in the current folder first, which may be a checkout of this
            # one whose extension was never built.
            with contextlib.chdir(sys.prefix):
                _connect(count or usable_cores())
        self._stopping = False
        self._asked = 0.0
        try:
            cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))
            if count is not None and count > cpus:
                raise ConfigError(f"workers is {count}, more than the {cpus} CPUs of Ray's cluster")
            super().__init__(count or cpus, fresh=fresh)
            self._given = ray.put((begin, given))
            for _ in range(0 if fresh else self.count):
                self._workers.append(self._start())
        except BaseException:
            if self._own:
                ray.shutdown()
            raise

    def put(self, array: Tensor) -> object:
        return ray.put(array.numpy())

    def stop(self) -> None:
        self._stopping = True

    def close(self) -> None:
        super().close()
        if self._own:
            ray.shutdown()

    def _start(self) -> _Actor:
        options = {"num_cpus": 1, "max_restarts": 0, "max_concurrency": 2 if self._fresh else 1}
        return _Actor(ray.remote(_Work).options(**options).remote(os.getcwd(), sys.path, self._given))

    def _give(self, worker: _Actor, order: Order) -> None:
        worker.answers[worker.actor.work.remote(order.task, *order.arrays)] = "done"

    def _listen(self, timeout: float | None) -> Iterator[News[_Actor]]:
        if self._fresh and time.monotonic() - self._asked > ASK:  # their second thread tells how far they are
            self._asked = time.monotonic()
            for worker in self._workers:
                if worker.begun and "said" not in worker.answers.values():
                    worker.answers[worker.actor.said.remote(self._stopping)] = "said"
        asked = {reference: worker for worker in self._workers for reference in worker.answers}
        if asked and not ray.wait(list(asked), num_returns=1, timeout=timeout)[0]:
            return
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        ended = set[int]()
        for reference in ready:
            worker = asked[reference]
            if id(worker) in ended:
                continue
            news = _read(worker, reference)
            if news is not None:
                if news.kind == "died" or (self._fresh and news.kind in ("done", "failed")):
                    ended.add(id(worker))
                yield news

    def _end(self, workers: Sequence[_Actor]) -> None:
        for worker in workers:
            ray.kill(worker.actor)


def _connect(cpus: int) -> None:
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation tells nobody that it runs
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING
    )


def _read(worker: _Actor, reference: Foreign) -> News[_Actor] | None:
    kind = worker.answers.pop(reference)
    try:
        value = ray.get(reference)
    except RayActorError as error:
        return News(worker, "died", f"its Ray worker died: {str(error).strip().splitlines()[0]}")
    except Exception as error:  # fastagg is not there, say
        return News(worker, "failed" if kind == "done" else "broken", Failure.of(error))
    if kind == "ready":
        return News(worker, "ready", None) if value is None else News(worker, "broken", value)
    if kind == "said":
        return None if value is None else News(worker, "said", value)
    return News(worker, *value)


class _Work:
    """A worker's process. Its methods are called by Ray."""

    def __init__(self, folder: str, paths: Sequence[str], given: tuple[Begin, Sequence[Sent]]) -> None:
        """``folder`` and ``paths``: where the other side is, and where it finds modules."""
        if os.path.isdir(folder):
            os.chdir(folder)
        sys.path.extend(path for path in paths if path not in sys.path)
        set_num_threads(1)  # it has one CPU
        self._value: Sent = None
        self._stop = threading.Event()
        self._broken: Failure | None = None
        try:
            self._do = given[0](*given[1])
        except Exception as error:
            self._broken = Failure.of(error)

    def begun(self) -> Failure | None:
        return self._broken

    def work(self, task: Sent, *arrays: np.ndarray) -> tuple[str, Sent]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                tensors = [torch.from_numpy(array) for array in arrays]
            return "done", self._do(task, tensors, self)
        except Exception as error:
            return "failed", Failure.of(error)

    def said(self, stop: bool) -> Sent:
        """Called meanwhile, by another thread: what was said since."""
        if stop:
            self._stop.set()
        value, self._value = self._value, None
        return value

    def say(self, value: Sent) -> None:
        self._value = value

    def stopped(self) -> bool:
        return self._stop.is_set()
