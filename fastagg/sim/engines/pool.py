"""Workers that are processes of this machine.

Each is an executor of its own, so that its death is only its own. A server that has imported torch once forks them.
Weights and results go through files in memory. When this process is gone a worker ends, and removes them.
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
from functools import lru_cache, partial
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.errors import RunFailed
from fastagg.sim.engines.workers import Begin, Board, Do, Failure, Sent, attempt, work
from fastagg.sim.one.interrupt import without_ctrl_c

# What every run imports sooner or later; torch's first optimizer imports torch._dynamo.
PRELOAD = [
    "fastagg.sim.one.run", "fastagg.sim.engines.training", "fastagg.sim.show.plots", "sklearn.datasets",
    "torch._dynamo",
]  # fmt: skip
_MEMORY = Path("/dev/shm")


class _Board:
    """In memory that processes share."""

    def __init__(self, context: Foreign, tasks: int) -> None:
        self._shares, self._stop = context.RawArray("d", tasks), context.Event()

    def tell(self, task: int, share: float) -> None:
        self._shares[task] = share

    def told(self) -> list[float]:
        return list(self._shares)

    def stop(self) -> None:
        self._stop.set()

    def stopped(self) -> bool:
        return bool(self._stop.is_set())


class Laid:
    """Weights in a file, for as long as somebody holds this."""

    def __init__(self, path: str) -> None:
        self.path = path
        weakref.finalize(self, Path(path).unlink, missing_ok=True)


class _Seat:
    """One process, and what it has to do. ``guilty``: what it died of."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self.executor = executor
        self.out: list[Future[str]] = []
        self.guilty: Future[str] | None = None
        self.processes: list[BaseProcess] = []

    def submit(self, task: Sent, path: str | None) -> Future[str]:
        future = self.executor.submit(_work, task, path)
        self.processes = self.processes or list(self.executor._processes.values())  # it starts with its first task
        self.out.append(future)
        future.add_done_callback(self.heard)
        return future

    def heard(self, future: Future[str]) -> None:
        """An executor ends what it has in order, so that the first one was at work."""
        if self.guilty is None and not future.cancelled() and isinstance(future.exception(), BrokenProcessPool):
            self.guilty = future

    def end(self, _: object = None, *, wait: bool = False) -> None:
        for process in self.processes:
            process.kill()
        self.executor.shutdown(wait, cancel_futures=True)


class Pool:
    """``count`` processes. With ``tasks`` each task gets a new one."""

    def __init__(self, count: int, begin: Begin, *given: Sent, tasks: int = 0) -> None:
        self.count, self._fresh = count, bool(tasks)
        self._context = _context()
        self.board: Board | None = _Board(self._context, tasks) if tasks else None
        self._folder = tempfile.mkdtemp(
            prefix=f"fastagg-pool-{os.getpid()}-", dir=_MEMORY if _MEMORY.is_dir() else None
        )
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._numbers = itertools.count()
        threads = max(1, usable_cores() // count)
        self._given = threads, self._folder, begin, given if self.board is None else (self.board, *given)
        self._seats: list[_Seat] = []
        self._guilty: list[Future[Sent]] = []

    def put(self, weights: Sent) -> Laid:
        try:
            return Laid(lay(weights, f"{self._folder}/weights{next(self._numbers)}"))
        except OSError as error:
            raise RunFailed(f"weights for other processes cannot be written: {error}") from error

    def submit(self, task: Sent, weights: object = None) -> Future[Sent]:
        path = weights.path if isinstance(weights, Laid) else None
        for seat in self._seats:
            seat.out = [future for future in seat.out if not future.done()]
        if self._fresh:
            self._seats = [seat for seat in self._seats if seat.out]
        while True:
            seat = self._seat()
            try:
                laid = seat.submit(task, path)
                break
            except BrokenProcessPool:
                self._seats.remove(seat)
        if self._fresh:
            laid.add_done_callback(seat.end)
        found: Future[Sent] = Future()
        found.set_running_or_notify_cancel()
        laid.add_done_callback(partial(self._read, seat, found, weights))
        return found

    def guilty(self, future: Future[Sent]) -> bool:
        return future in self._guilty

    def close(self) -> None:
        for seat in self._seats:
            seat.end(wait=True)
        self._seats.clear()
        self._remove()

    def _seat(self) -> _Seat:
        """Return who has the least to do; a new one while there are too few."""
        idle = not self._fresh and min((len(seat.out) for seat in self._seats), default=1) == 0
        if self._fresh or (len(self._seats) < self.count and not idle):
            executor = ProcessPoolExecutor(1, self._context, _begin, self._given)
            self._seats.append(_Seat(executor))
            return self._seats[-1]
        return min(self._seats, key=lambda seat: len(seat.out))

    def _read(self, seat: _Seat, found: Future[Sent], held: object, laid: Future[str]) -> None:
        """``held``: the weights, which stay until now."""
        error = BrokenProcessPool("the pool was closed") if laid.cancelled() else laid.exception()
        if isinstance(error, BrokenProcessPool) and not laid.cancelled():
            codes = ", ".join(str(process.exitcode) for process in seat.processes)
            error = BrokenProcessPool(f"its process ended with code {codes}")
        if error is None:
            try:
                found.set_result(take(laid.result()))
                return
            except OSError as unread:
                error = unread
        if seat.guilty in (laid, None):  # nobody else: its process ended, or memory for its result did
            self._guilty.append(found)
        found.set_exception(error)


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
