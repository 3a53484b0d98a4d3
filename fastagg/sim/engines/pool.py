"""Workers that are processes of this machine.

A server that has imported torch once forks them. Weights and results go through files in memory. When this process is
gone a worker ends, and removes them.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import connection, forkserver
from pathlib import Path

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.errors import RunFailed
from fastagg.sim.engines.workers import Begin, Do, Failure, Sent, attempt, work
from fastagg.sim.one.interrupt import without_ctrl_c

# What every run imports sooner or later; torch's first optimizer imports torch._dynamo.
PRELOAD = [
    "fastagg.sim.one.run", "fastagg.sim.engines.training", "fastagg.sim.show.plots", "sklearn.datasets",
    "torch._dynamo",
]  # fmt: skip
_MEMORY = Path("/dev/shm")


class Laid:
    """Weights in a file, for as long as somebody holds this."""

    def __init__(self, path: str) -> None:
        self.path = path
        weakref.finalize(self, Path(path).unlink, missing_ok=True)


class Pool:
    """``count`` processes. With ``fresh`` each task gets a new one."""

    def __init__(self, count: int, begin: Begin, *given: Sent, fresh: bool = False) -> None:
        self.count, self._fresh, self._each = count, fresh, 1 if fresh else count
        self._context = _context()
        self._folder = tempfile.mkdtemp(
            prefix=f"fastagg-pool-{os.getpid()}-", dir=_MEMORY if _MEMORY.is_dir() else None
        )
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = itertools.count()
        self._given = max(1, usable_cores() // count), self._folder, begin, given
        self._executors: list[ProcessPoolExecutor] = []

    def put(self, weights: Sent) -> Laid:
        try:
            return Laid(lay(weights, f"{self._folder}/weights{next(self._numbers)}"))
        except OSError as error:
            raise RunFailed(f"weights for other processes cannot be written: {error}") from error

    def submit(self, task: Sent, weights: object = None) -> Future[str]:
        path = weights.path if isinstance(weights, Laid) else None
        if self._fresh or not self._executors:
            self._executors.append(ProcessPoolExecutor(self._each, self._context, _begin, self._given))
        executor = self._executors[-1]
        try:
            future = executor.submit(_work, task, path)
        except BrokenProcessPool:  # one of its processes has died: so have the others
            self._end(executor)
            return self.submit(task, weights)
        future.add_done_callback(lambda _, held=weights: None)  # type: ignore[misc]  # its file stays until then
        if self._fresh:
            future.add_done_callback(lambda _: self._end(executor))
        return future

    def read(self, future: Future[str]) -> Sent:
        return take(future.result())

    def close(self) -> None:
        for executor in list(self._executors):
            self._end(executor, wait=True)
        self._remove()

    def _end(self, executor: ProcessPoolExecutor, *, wait: bool = False) -> None:
        for process in list((executor._processes or {}).values()):
            process.kill()
        executor.shutdown(wait, cancel_futures=True)
        if executor in self._executors:
            self._executors.remove(executor)


def lay(value: Sent, path: str) -> str:
    """Write ``value`` to a file; return ``path``. A pipe would break in the middle when its process dies."""
    with open(path, "wb") as file:
        pickle.dump(value, file, protocol=5)
    return path


def take(path: str) -> Sent:
    """Return what was laid, and remove the file."""
    value = _held(path)
    os.unlink(path)
    return value


def _held(path: str) -> Sent:
    with open(path, "rb") as file:
        return pickle.load(file)


def _context() -> Foreign:
    server = "forkserver" in multiprocessing.get_all_start_methods()
    # their classes have no common type with `Process`
    context: Foreign = multiprocessing.get_context("forkserver" if server else "spawn")
    if server:
        context.set_forkserver_preload(PRELOAD)
        with without_ctrl_c(), _safe_path():  # else a ctrl-C while the server imports would end it, and all workers
            forkserver.ensure_running()
    return context


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that start meanwhile do not look for packages in the current folder, which may be a checkout of this
    one whose extension was never built."""
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class _Here:
    """What this process, a worker, has begun with."""

    do: Do | Failure
    folder: str
    numbers = itertools.count()


def _begin(threads: int, folder: str, begin: Begin, given: Sequence[Sent]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side says when to stop
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    set_num_threads(threads)
    _Here.folder, _Here.do = folder, attempt(begin, *given, early=True)


def _end_with_parent(folder: str) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


@lru_cache(maxsize=1)
def _weights(path: str) -> Sent:
    return _held(path)


def _work(task: Sent, path: str | None) -> str:
    found = work(_Here.do, task, None if path is None else _weights(path))
    return lay(found, f"{_Here.folder}/result{os.getpid()}-{next(_Here.numbers)}")
