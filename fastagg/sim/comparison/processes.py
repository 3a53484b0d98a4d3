"""Runs functions in new processes. With several jobs, a comparison runs each cell in a new process, so that the cell's
memory and threads end with the process.

This module pickles arguments and results by value. multiprocessing would pickle a tensor as a file or a socket. The
file or socket may disappear with the process that has sent it, before another process has read the tensor.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir
from multiprocessing import connection, forkserver
from typing import Any

from fastagg._build import set_num_threads, usable_cores
from fastagg._types import Foreign
from fastagg.sim.runs.interrupt import without_ctrl_c

# Modules that every run imports. A process's first torch optimizer imports torch._dynamo.
PRELOAD = ["fastagg.sim.runs.run", "fastagg.sim.show.plots", "sklearn.datasets", "torch._dynamo"]


class Processes:
    """Runs at most ``count`` processes at a time. They are forked from a server process that has imported PRELOAD."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._context: Foreign = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        # Ctrl-C during the imports must not end the server process. The server process must not import from the current
        # folder, which may be a checkout of fastagg without a built extension.
        with without_ctrl_c(), chdir(sys.prefix):
            forkserver.ensure_running()
        self._threads = ThreadPoolExecutor(count)
        self._running: set[Foreign] = set()

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[Any]:
        """Call ``function``, which must be importable and raise nothing, in a new process. The future has the result of
        the function, or EOFError if the process dies."""
        return self._threads.submit(self._call, function, arguments)

    def _call(self, *call: object) -> object:
        here, there = self._context.Pipe(duplex=False)
        threads = max(1, usable_cores() // self.count)
        process = self._context.Process(target=_alone, args=(there, threads, pickle.dumps(call)))
        process.start()
        self._running.add(process)
        there.close()  # with an open copy here, recv_bytes would not notice that the process has ended
        try:
            return pickle.loads(here.recv_bytes())
        except EOFError:
            raise EOFError("its process died") from None
        finally:
            process.join()
            self._running.discard(process)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._running):
            process.kill()


def _alone(there: Foreign, threads: int, call: bytes) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_num_threads(threads)
    function, arguments = pickle.loads(call)
    there.send_bytes(pickle.dumps(function(*arguments)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
