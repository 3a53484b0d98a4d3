"""Workers that are Ray's: on this machine, or on the cluster that ``RAY_ADDRESS`` names.

Tasks are Ray's own tasks, weights lie in its object store. On a cluster every machine needs fastagg and the run's data,
at the same places; a comparison also needs the folder of its results there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import lru_cache

import ray
from ray import cloudpickle

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.errors import ConfigError
from fastagg.sim.engines.workers import Begin, Do, Failure, Sent, attempt, work


def dumps(value: object) -> bytes:
    found: bytes = cloudpickle.dumps(value)
    return found


class Cluster:
    """``count`` workers with a CPU each; None: as many as the cluster, or this machine, has CPUs."""

    def __init__(self, count: int | None, begin: Begin, *given: Sent, fresh: bool = False) -> None:
        self._own = not ray.is_initialized()
        if self._own:
            # Ray would have its workers look for packages in the current folder first, which may be a checkout of this
            # one whose extension was never built.
            with contextlib.chdir(sys.prefix):
                _connect(count or usable_cores())
        try:
            cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))
            if count is not None and count > cpus:
                raise ConfigError(f"workers is {count}, more than the {cpus} CPUs of Ray's cluster")
            self.count = count or cpus
            held = ray.put((begin, given))
            self._given = os.getcwd(), tuple(sys.path), held.hex(), [held]
            # A run of its own has a process of its own, as its memory and its threads are.
            self._task: Foreign = ray.remote(num_cpus=1, max_retries=0, max_calls=1 if fresh else 0)(_work)
        except BaseException:
            if self._own:
                ray.shutdown()
            raise
        self._out: dict[Future[Sent], Foreign] = {}

    def put(self, weights: Sent) -> object:
        return ray.put(weights)

    def submit(self, task: Sent, weights: object = None) -> Future[Sent]:
        reference = self._task.remote(*self._given, task, weights)
        future: Future[Sent] = reference.future()
        self._out = {one: held for one, held in self._out.items() if not one.done()} | {future: reference}
        return future

    def read(self, future: Future[Sent]) -> Sent:
        return future.result()

    def close(self) -> None:
        for future, reference in self._out.items():
            if not future.done():
                ray.cancel(reference, force=True)
        self._out.clear()
        if self._own:
            ray.shutdown()


def _connect(cpus: int) -> None:
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a simulation tells nobody that it runs
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING
    )


_held: dict[str, Foreign] = {}  # the reference of begin and given, by its name


@lru_cache(maxsize=4)  # simulations side by side
def _begun(folder: str, paths: Sequence[str], name: str) -> Do | Failure:
    """Begin, where the other side is, with the modules that it finds."""
    if os.path.isdir(folder):
        os.chdir(folder)
    sys.path.extend(path for path in paths if path not in sys.path)
    set_num_threads(1)  # it has one CPU
    begin, given = ray.get(_held.pop(name))
    found: Do | Failure = attempt(begin, *given, early=True)
    return found


def _work(folder: str, paths: Sequence[str], name: str, held: list[Foreign], task: Sent, weights: Sent) -> Sent:
    _held[name] = held[0]  # Ray does not fetch what is in a list
    return work(_begun(folder, paths, name), task, weights)
