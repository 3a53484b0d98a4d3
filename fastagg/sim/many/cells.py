"""Runs the cells of a comparison, in this process or by an engine's workers, one cell in each.

A cell that is over is only read, one that was stopped goes on from its checkpoint. One that fails does not stop the
others. After ctrl-C the cells at hand stop at their next update and write what they have; the others do not start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastagg.errors import ConfigError, DataError, FastaggError
from fastagg.sim import engines
from fastagg.sim.engines.workers import Do, Failure, Workers
from fastagg.sim.one.interrupt import on_ctrl_c
from fastagg.sim.one.result import Outcome
from fastagg.sim.one.run import Resume, run
from fastagg.sim.recipes.config import Config
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.show.progress import Progress, Watcher


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    jobs: int | None,
    watcher: Watcher,
    replace: bool = False,
    engine: engines.Name | None = None,
) -> dict[str, Outcome]:
    """Run ``cells`` into folders below ``out``, in ``jobs`` processes; return by name what became of those that
    started.

    With ``replace`` a folder that holds a run with other settings is overwritten; otherwise its cell fails. ``engine``
    None: "here" for one job, "pool" for more. ``jobs`` None: one, or what the engine has.
    """
    engine = engine or ("here" if jobs in (None, 1) else "pool")
    engines.check(engine, jobs)
    if engine == "here" and jobs not in (None, 1):
        raise ConfigError(f'jobs is {jobs}: engine "here" runs one after the other, choose "pool" or "ray"')
    if engine == "here":
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
        with closing(engines.start(engine, jobs, _begin, board, fresh=True)) as workers:
            return _side_by_side(cells, out, workers, board, watcher, replace)


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
    cells: Sequence[Cell], out: Path, workers: Workers, board: _Board, watcher: Watcher, replace: bool
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
                at_work[workers.submit((number, cell.config, out / cell.name, replace))] = number, cell
                watcher.started(cell)
            over, _ = wait(at_work, 0.2, FIRST_COMPLETED)
            for future in over:
                _, cell = at_work.pop(future)
                outcomes[cell.name] = _outcome(workers, future)
                watcher.ended(cell, outcomes[cell.name])
            for number, cell in at_work.values():
                watcher.advanced(cell, board.told(number))
    return outcomes


def _outcome(workers: Workers, future: Future[Any]) -> Outcome:
    try:
        found = workers.read(future)
    except BrokenExecutor:
        return "its process died"
    except Exception as died:
        return str(died)
    return found.message if isinstance(found, Failure) else found


def _begin(board: _Board) -> Do:
    return partial(_work, board)


def _work(board: _Board, task: tuple[int, Config, Path, bool], _: object) -> Outcome:
    """A cell in a process of its own."""
    number, config, folder, replace = task
    sent = 0.0

    def say(share: float) -> None:
        nonlocal sent
        if time.monotonic() - sent > 0.5:
            sent = time.monotonic()
            board.tell(number, float(share))

    return _attempt(config, folder, _Telling(say), replace, board.stopped)
