"""Processes of this machine for whole runs, a new one for each: as its memory and its threads are, so is its end.

What goes to a process and comes back is pickled here, by value. The pickles of tensors that multiprocessing makes are
files and sockets that end with the process, perhaps before the other side has read them.
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

# What every run imports sooner or later; torch's first optimizer imports torch._dynamo.
PRELOAD = ["fastagg.sim.runs.run", "fastagg.sim.show.plots", "sklearn.datasets", "torch._dynamo"]


class Processes:
    """``count`` at a time, forked by a server that has imported torch once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._context: Foreign = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)
        # Ctrl-C while it imports would end it, and all processes. Nor may it look for packages in the current folder,
        # which may be a checkout of this one whose extension was never built.
        with without_ctrl_c(), chdir(sys.prefix):
            forkserver.ensure_running()
        self._threads = ThreadPoolExecutor(count)
        self._running: set[Foreign] = set()

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[Any]:
        """Call a function of a module that raises nothing. Its result, or EOFError if the process dies."""
        return self._threads.submit(self._call, function, arguments)

    def _call(self, *call: object) -> object:
        here, there = self._context.Pipe(duplex=False)
        threads = max(1, usable_cores() // self.count)
        process = self._context.Process(target=_alone, args=(there, threads, pickle.dumps(call)))
        process.start()
        self._running.add(process)
        there.close()  # else nobody would tell this end that the process is gone
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side says when to stop
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_num_threads(threads)
    function, arguments = pickle.loads(call)
    there.send_bytes(pickle.dumps(function(*arguments)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
