"""Runs the cells of a comparison, in this process or by an engine's workers, each cell in a process of its own.

A cell that is over is only read, one that was stopped goes on from its checkpoint. One that fails does not stop the
others. After ctrl-C the cells at hand stop at their next update and write what they have; the others do not start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from fastagg.errors import FastaggError
from fastagg.sim import engines
from fastagg.sim.config import Config
from fastagg.sim.engines.crew import Crew
from fastagg.sim.engines.workers import Do, Line
from fastagg.sim.interrupt import on_ctrl_c
from fastagg.sim.metrics import Row
from fastagg.sim.progress import NoProgress
from fastagg.sim.result import Outcome, Result, read
from fastagg.sim.simulation import run
from fastagg.sim.sweep import Cell


class Watcher(Protocol):
    def started(self, cell: Cell) -> None: ...

    def advanced(self, cell: Cell, share: float) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None: ...


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    jobs: int | None,
    watcher: Watcher,
    replace: bool = False,
    engine: engines.Name | None = None,
) -> dict[str, Outcome]:
    """Run ``cells`` into folders below ``out``, ``jobs`` at once; return by name what became of those that started.

    With ``replace`` a folder that holds a run with other settings is overwritten; otherwise its cell fails. ``engine``
    None: "here" for one job, "pool" for more. ``jobs`` None: one, or what the engine has.
    """
    engine = engine or ("here" if jobs in (None, 1) else "pool")
    engines.check(engine, jobs)
    if engine == "here":
        return _one_by_one(cells, out, watcher, replace)
    with closing(engines.start(engine, jobs, _begin, fresh=True)) as workers:
        return _side_by_side(cells, out.absolute(), workers, watcher, replace)


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


def _side_by_side(
    cells: Sequence[Cell], out: Path, workers: Crew, watcher: Watcher, replace: bool
) -> dict[str, Outcome]:
    waiting = deque(cells)
    running: dict[int, Cell] = {}
    outcomes: dict[str, Outcome] = {}
    with on_ctrl_c() as asked:
        while waiting or running:
            if asked:
                workers.stop()
                waiting.clear()
            while waiting and len(running) < workers.count:
                cell = waiting.popleft()
                running[workers.submit((cell.config, out / cell.name, replace))] = cell
                watcher.started(cell)
            for event in workers.wait(0.2):
                cell = running[event.ticket]
                if event.kind == "said":
                    watcher.advanced(cell, event.value)
                    continue
                del running[event.ticket]
                error = event.value.message if event.kind == "failed" else event.value
                outcomes[cell.name] = _ended(cell, out, error)
                watcher.ended(cell, outcomes[cell.name])
    return outcomes


def _ended(cell: Cell, out: Path, error: str | None) -> Outcome:
    if error is not None:
        return error
    try:
        return read(out / cell.name, cell.config) or "it left no summary.json"
    except FastaggError as damaged:
        return str(damaged)


def _begin() -> Do:
    return _work


def _work(task: tuple[Config, Path, bool], arrays: Sequence[Any], line: Line) -> str | None:
    """A cell in a process of its own: it says the share that is done now and then, and returns what went wrong."""
    config, folder, replace = task
    outcome = _attempt(config, folder, _Sending(line), replace, line.stopped)
    return outcome if isinstance(outcome, str) else None


class _Sending:
    """Sends at most twice a second. When the other side is gone the line breaks, and the cell ends."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sent = 0.0

    def advanced(self, share: float) -> None:
        now = time.monotonic()
        if now - self._sent > 0.5:
            self._sent = now
            self._line.say(float(share))

    def evaluated(self, row: Row) -> None:
        pass
