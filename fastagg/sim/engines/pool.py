"""Workers that are processes of this machine.

A server that has imported torch once forks them, each with its own crash and its own memory. Arrays lie in shared
memory. When this process is gone a worker ends, and removes what lies there.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from torch import Tensor

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.sim.engines.crew import DEPTH, Crew, News, Order, Worker
from fastagg.sim.engines.slots import Slots, read
from fastagg.sim.engines.workers import Begin, Failure, Sent
from fastagg.sim.interrupt import without_ctrl_c
from fastagg.storage.shared import Mapped, SharedVector

# What every run imports sooner or later; torch's first optimizer imports torch._dynamo.
PRELOAD = [
    "fastagg.sim.simulation", "fastagg.sim.engines.training", "fastagg.sim.plots", "sklearn.datasets", "torch._dynamo",
]  # fmt: skip
_MEMORY = Path("/dev/shm")


class _Process(Worker):
    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        super().__init__()
        self.process, self.pipe = process, pipe


class Lent:
    """A vector in shared memory, for as long as somebody holds this."""

    def __init__(self, vector: SharedVector, free: list[SharedVector]) -> None:
        self.vector = vector
        weakref.finalize(self, free.append, vector)


class Pool(Crew[_Process]):
    """``count`` processes."""

    def __init__(self, count: int, begin: Begin, *given: Sent, fresh: bool = False) -> None:
        super().__init__(count, fresh=fresh)
        self._begin, self._given = begin, given
        self._context = _context()
        self._stop = self._context.Event()
        self._folder: str | None = None
        self._remove: Callable[[], object] | None = None
        self._free: list[SharedVector] = []
        self._mapped = Mapped()
        try:
            for _ in range(0 if fresh else count):
                self._workers.append(self._start())
        except BaseException:
            self.close()
            raise

    def put(self, array: Tensor) -> Lent:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="fastagg-pool-", dir=_MEMORY if _MEMORY.is_dir() else None)
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        # Workers have mapped what was used before, and its memory is there.
        fitting = [vector for vector in self._free if vector.size == array.numel()]
        vector = fitting[0] if fitting else SharedVector(array.numel(), folder=self._folder)
        if fitting:
            self._free.remove(vector)
        vector.tensor.copy_(array)
        return Lent(vector, self._free)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        super().close()
        self._free.clear()
        if self._remove is not None:
            self._remove()

    def _start(self) -> _Process:
        mine, theirs = self._context.Pipe()
        threads = max(1, usable_cores() // self.count)
        arguments = (theirs, self._stop, threads, self._begin, self._given)
        process = self._context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        return _Process(process, mine)

    def _give(self, worker: _Process, order: Order) -> None:
        places = [(lent.vector.path, lent.vector.size, lent.vector.dtype) for lent in order.arrays]
        with suppress(OSError):
            worker.pipe.send((order.task, places))

    def _listen(self, timeout: float | None) -> Iterator[News[_Process]]:
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in connection.wait(list(by_pipe), timeout):
            assert isinstance(pipe, Connection)
            worker = by_pipe[pipe]
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError):
                worker.process.join()
                kind, value = "died", f"its process ended with code {worker.process.exitcode}"
            yield News(worker, kind, read(value, self._mapped))

    def _end(self, workers: Sequence[_Process]) -> None:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


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


class _Line:
    """When the other side is gone, the pipe breaks and the task ends."""

    def __init__(self, pipe: Connection, stop: Event) -> None:
        self._pipe, self._stop = pipe, stop

    def say(self, value: Sent) -> None:
        self._pipe.send(("said", value))

    def stopped(self) -> bool:
        return bool(self._stop.is_set())


def _work(pipe: Connection, stop: Event, threads: int, begin: Begin, given: Sequence[Sent]) -> None:
    """A worker's process: it says "ready" or "broken", then for every task "done" or "failed"."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side says when to stop
    set_num_threads(threads)
    mapped, line, slots, folder = Mapped(), _Line(pipe, stop), Slots(DEPTH), ""
    try:
        try:
            do = begin(*given)
        except Exception as error:
            pipe.send(("broken", Failure.of(error)))
            return
        pipe.send(("ready", None))
        while True:
            task, places = pipe.recv()
            folder = os.path.dirname(places[0][0]) if places else folder
            try:
                value = do(task, [mapped.get(*place) for place in places], line)
                answer: tuple[str, Sent] = "done", slots.lay(value, folder) if folder else value
            except Exception as error:
                answer = "failed", Failure.of(error)
            pipe.send(answer)
    except (EOFError, OSError):  # nobody is there any more
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
