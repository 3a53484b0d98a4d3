"""Runs the cells of a comparison, in this process or in several, each cell in a process of its own.

A cell that is over is only read, one that was stopped goes on from its checkpoint. One that fails does not stop the
others. After ctrl-C the cells at hand stop at their next update and write what they have; the others do not start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any, Protocol

from fastagg._build import set_num_threads, usable_cores
from fastagg.errors import FastaggError
from fastagg.sim.config import Config
from fastagg.sim.interrupt import on_ctrl_c, without_ctrl_c
from fastagg.sim.metrics import Row
from fastagg.sim.progress import NoProgress
from fastagg.sim.result import Outcome, Result, read
from fastagg.sim.simulation import run
from fastagg.sim.sweep import Cell

# What every cell imports sooner or later; torch's first optimizer imports torch._dynamo.
PRELOAD = ["fastagg.sim.simulation", "fastagg.sim.plots", "sklearn.datasets", "torch._dynamo"]


class Watcher(Protocol):
    def started(self, cell: Cell) -> None: ...

    def advanced(self, cell: Cell, share: float) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None: ...


def run_cells(
    cells: Sequence[Cell], out: Path, jobs: int, watcher: Watcher, replace: bool = False
) -> dict[str, Outcome]:
    """Run ``cells`` into folders below ``out``, ``jobs`` at once; return by name what became of those that started.

    With ``replace`` a folder that holds a run with other settings is overwritten; otherwise its cell fails.
    """
    if jobs == 1:
        return _one_by_one(cells, out, watcher, replace)
    return _side_by_side(cells, out, jobs, watcher, replace)


def _one_by_one(cells: Sequence[Cell], out: Path, watcher: Watcher, replace: bool) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for cell in cells:
        watcher.started(cell)
        outcome = outcomes[cell.name] = _attempt(cell.config, out / cell.name, _Telling(cell, watcher), replace)
        watcher.ended(cell, outcome)
        if isinstance(outcome, Result) and outcome.summary["interrupted"]:
            break
    return outcomes


def _attempt(config: Config, folder: Path, progress: Any, replace: bool, stop: Any = lambda: False) -> Outcome:
    try:
        return run(config, folder, progress, resume="replace" if replace else "go on", stop=stop)
    except FastaggError as error:
        return str(error)
    except Exception as error:  # a cell must not take the others with it
        return f"{type(error).__name__}: {error}"


class _Telling(NoProgress):
    def __init__(self, cell: Cell, watcher: Watcher) -> None:
        self._cell, self._watcher = cell, watcher

    def advanced(self, share: float) -> None:
        self._watcher.advanced(self._cell, share)


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


def _side_by_side(cells: Sequence[Cell], out: Path, jobs: int, watcher: Watcher, replace: bool) -> dict[str, Outcome]:
    # A server that has imported torch once forks the cells, each with its own crash and its own memory.
    server = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if server else "spawn")
    if server:
        context.set_forkserver_preload(PRELOAD)
        with without_ctrl_c(), _safe_path():  # else a ctrl-C while the server imports would end it, and all cells
            forkserver.ensure_running()
    stop = context.Event()
    threads = max(1, usable_cores() // jobs)
    waiting = deque(cells)
    running: dict[Any, tuple[Cell, Any]] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        with on_ctrl_c() as asked:
            while waiting or running:
                if asked:
                    stop.set()
                    waiting.clear()
                while waiting and len(running) < jobs:
                    cell = waiting.popleft()
                    mine, theirs = context.Pipe(duplex=False)
                    arguments = (theirs, stop, cell.config, out / cell.name, replace, threads)
                    process = context.Process(target=_work, args=arguments, daemon=True)
                    process.start()
                    theirs.close()  # so that the end of the process is the end of the pipe
                    running[mine] = cell, process
                    watcher.started(cell)
                ready: list[Any] = connection.wait(list(running), timeout=0.2)
                for pipe in ready:
                    cell, process = running[pipe]
                    try:
                        message = pipe.recv()
                    except EOFError:
                        process.join()
                        message = f"its process ended with code {process.exitcode}"
                    if isinstance(message, float):
                        watcher.advanced(cell, message)
                        continue
                    del running[pipe]
                    process.join()
                    outcomes[cell.name] = _ended(cell, out, message)
                    watcher.ended(cell, outcomes[cell.name])
    finally:  # nothing is left here unless this process was interrupted a second time
        for _, process in running.values():
            process.kill()
            process.join()
    return outcomes


def _ended(cell: Cell, out: Path, error: str | None) -> Outcome:
    if error is not None:
        return error
    try:
        return read(out / cell.name, cell.config) or "it left no summary.json"
    except FastaggError as damaged:
        return str(damaged)


def _work(pipe: Any, stop: Any, config: Config, folder: Path, replace: bool, threads: int) -> None:
    """A cell's process: sends the share that is done now and then, at the end None or what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    set_num_threads(threads)
    outcome = _attempt(config, folder, _Sending(pipe), replace, stop.is_set)
    with suppress(OSError):
        pipe.send(outcome if isinstance(outcome, str) else None)


class _Sending:
    """Sends at most twice a second. When the parent is gone the pipe breaks, and the cell ends."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._sent = 0.0

    def advanced(self, share: float) -> None:
        now = time.monotonic()
        if now - self._sent > 0.5:
            self._sent = now
            self._pipe.send(float(share))

    def evaluated(self, row: Row) -> None:
        pass
