"""Runs the cells of a comparison, in this process or by an engine's workers, one cell in each.

A cell that is over is only read, one that was stopped goes on from its checkpoint. One that fails does not stop the
others. After ctrl-C the cells at hand stop at their next update and write what they have; the others do not start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fastagg.errors import DataError, FastaggError
from fastagg.sim import engines
from fastagg.sim.engines.processes import Processes
from fastagg.sim.one.interrupt import on_ctrl_c
from fastagg.sim.one.result import Outcome
from fastagg.sim.one.run import Resume, run
from fastagg.sim.recipes.config import Config
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.progress import Progress, Watcher

if TYPE_CHECKING:
    from fastagg.sim.engines.ray import Cluster


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    jobs: int | None,
    watcher: Watcher,
    replace: bool = False,
    engine: engines.Name = "here",
) -> dict[str, Outcome]:
    """Run ``cells`` into folders below ``out``, in ``jobs`` processes; return by name what became of those that
    started.

    With ``replace`` a folder that holds a run with other settings is overwritten; otherwise its cell fails. ``engine``:
    "here", on this machine, or "ray". ``jobs`` None: in this process, or by as many workers as Ray has.
    """
    engines.check(engine, jobs)
    if engine == "here" and jobs in (None, 1):
        with on_ctrl_c() as asked:
            return _one_by_one(cells, out, watcher, replace, asked.is_set)
    out = out.absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        told = TemporaryDirectory(prefix=".running-", dir=out)
    except OSError as error:
        raise DataError(f"cannot write results to {out}: {error}") from error
    with told as folder:
        board = _Board(Path(folder))
        with closing(_workers(engine, jobs)) as workers:
            return _side_by_side(cells, out, workers, board, watcher, replace)


def _workers(engine: engines.Name, jobs: int | None) -> Processes | Cluster:
    if engine == "ray":
        from fastagg.sim.engines.ray import Cluster

        return Cluster(jobs, fresh=True)
    return Processes(jobs or 1)


def _one_by_one(
    cells: Sequence[Cell], out: Path, watcher: Watcher, replace: bool, stop: Callable[[], bool]
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for cell in cells:
        if stop():
            break
        watcher.started(cell)
        told = _Telling(partial(watcher.advanced, cell))
        outcomes[cell.name] = _attempt(cell.config, out / cell.name, told, replace, stop)
        watcher.ended(cell, outcomes[cell.name])
    return outcomes


def _attempt(config: Config, folder: Path, progress: Progress, replace: bool, stop: Callable[[], bool]) -> Outcome:
    resume: Resume = "replace" if replace else "go on"
    try:
        return run(config, folder, progress, resume=resume, stop=stop)
    except FastaggError as error:
        return str(error)
    except Exception as error:  # a cell must not take the others with it
        return f"{type(error).__name__}: {error}"


class _Telling(Progress):
    def __init__(self, say: Callable[[float], None]) -> None:
        self.advanced = say  # type: ignore[assignment, method-assign]


class _Board:
    """A folder where runs write how far they are, and read whether to stop. It is on all machines that they are on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tell(self, task: int, share: float) -> None:
        file = self._folder / str(task)
        with suppress(OSError):  # on a full disk a run goes on for as long as it can
            file.with_suffix(".new").write_text(repr(share))
            file.with_suffix(".new").replace(file)

    def told(self, task: int) -> float:
        file = self._folder / str(task)
        return float(file.read_text()) if file.exists() else 0.0

    def stop(self) -> None:
        (self._folder / "stop").touch()

    def stopped(self) -> bool:
        return (self._folder / "stop").exists()


def _side_by_side(
    cells: Sequence[Cell], out: Path, workers: Processes | Cluster, board: _Board, watcher: Watcher, replace: bool
) -> dict[str, Outcome]:
    waiting = deque(enumerate(cells))
    at_work: dict[Future[Any], tuple[int, Cell]] = {}
    outcomes: dict[str, Outcome] = {}
    with on_ctrl_c() as asked:
        while waiting or at_work:
            if asked.is_set():
                board.stop()
                waiting.clear()
            while waiting and len(at_work) < workers.count:
                number, cell = waiting.popleft()
                future = workers.submit(_work, board, number, cell.config, out / cell.name, replace)
                at_work[future] = number, cell
                watcher.started(cell)
            over, _ = wait(at_work, 0.2, FIRST_COMPLETED)
            for future in over:
                _, cell = at_work.pop(future)
                outcomes[cell.name] = _outcome(future)
                watcher.ended(cell, outcomes[cell.name])
            for number, cell in at_work.values():
                watcher.advanced(cell, board.told(number))
    return outcomes


def _outcome(future: Future[Any]) -> Outcome:
    try:
        found: Outcome = future.result()
    except Exception as died:
        return str(died)
    return found


def _work(board: _Board, number: int, config: Config, folder: Path, replace: bool) -> Outcome:
    """Run a cell in a process of its own."""
    sent = 0.0

    def say(share: float) -> None:
        nonlocal sent
        if time.monotonic() - sent > 0.5:
            sent = time.monotonic()
            board.tell(number, float(share))

    return _attempt(config, folder, _Telling(say), replace, board.stopped)
