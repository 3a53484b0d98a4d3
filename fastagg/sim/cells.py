"""Runs the cells of a comparison, in this process or by an engine's workers, a bundle of cells in each.

Cells of one process go on together and share stacks (together.py). A cell that is over is only read, one that was
stopped goes on from its checkpoint. One that fails does not stop the others. After ctrl-C the cells at hand stop at
their next update and write what they have; the others do not start.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from fastagg.errors import FastaggError
from fastagg.sim import engines
from fastagg.sim.config import Config
from fastagg.sim.engines.crew import Crew
from fastagg.sim.engines.stacks import Stacks
from fastagg.sim.engines.workers import Do, Line
from fastagg.sim.interrupt import on_ctrl_c
from fastagg.sim.metrics import Row
from fastagg.sim.progress import Progress
from fastagg.sim.result import Outcome, Result, read
from fastagg.sim.simulation import Resume, running
from fastagg.sim.sweep import Cell
from fastagg.sim.together import MOST, Running, together


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
    """Run ``cells`` into folders below ``out``, in ``jobs`` processes; return by name what became of those that
    started.

    With ``replace`` a folder that holds a run with other settings is overwritten; otherwise its cell fails. ``engine``
    None: "here" for one job, "pool" for more. ``jobs`` None: one, or what the engine has.
    """
    engine = engine or ("here" if jobs in (None, 1) else "pool")
    engines.check(engine, jobs)
    if engine == "here":
        with on_ctrl_c() as asked:
            return dict(_run(cells, out, watcher, replace, asked.is_set, asked.is_set))
    with closing(engines.start(engine, jobs, _begin, fresh=True)) as workers:
        return _side_by_side(cells, out.absolute(), workers, watcher, replace)


def _run(
    cells: Iterable[Cell],
    out: Path,
    watcher: Watcher,
    replace: bool,
    stop: Callable[[], bool],
    enough: Callable[[], bool],
) -> Iterator[tuple[str, Outcome]]:
    """Run cells in this process; ``stop`` ends those at hand, and after ``enough`` no other starts."""
    stacks = Stacks()

    begun: dict[str, Cell] = {}

    def started(alike: Iterable[Cell]) -> Iterator[tuple[str, Running[Outcome]]]:
        for cell in alike:
            if enough():
                return
            begun[cell.name] = cell
            watcher.started(cell)
            yield cell.name, _attempt(cell.config, out / cell.name, _Telling(cell, watcher), stacks, replace, stop)

    # torch's threads belong to the process, so only runs with as many go on together.
    for threads, alike in groupby(cells, key=lambda cell: cell.config.run.torch_threads):
        for name, outcome in together(started(alike), stacks, threads):
            watcher.ended(begun[name], outcome)
            yield name, outcome


def _attempt(
    config: Config, folder: Path, progress: Progress, stacks: Stacks, replace: bool, stop: Callable[[], bool]
) -> Running[Outcome]:
    resume: Resume = "replace" if replace else "go on"
    try:
        return (yield from running(config, folder, progress, stacks, resume=resume, stop=stop))
    except FastaggError as error:
        return str(error)
    except Exception as error:  # a cell must not take the others with it
        return f"{type(error).__name__}: {error}"


class _Telling:
    def __init__(self, cell: Cell, watcher: Watcher) -> None:
        self._cell, self._watcher = cell, watcher

    def advanced(self, share: float) -> None:
        self._watcher.advanced(self._cell, share)

    def evaluated(self, row: Row) -> None:
        pass


def bundles(cells: Sequence[Cell], workers: int) -> list[list[Cell]]:
    """Divide ``cells`` among ``workers`` so that cells which may share stacks are in one process.

    A bundle has at most as many as go on at once. Cells are dealt like cards, so that a method that takes longer is in
    all bundles.
    """
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        config = cell.config
        alike.setdefault(repr((config.model, config.data.name, config.run.torch_threads)), []).append(cell)
    found = []
    for group in alike.values():
        count = -(-len(group) // min(MOST, -(-len(group) // workers)))
        found += [group[number::count] for number in range(count)]
    return found


class _News(NamedTuple):
    """What a bundle tells, all of it each time: by name, the shares of cells that began, and errors (or None) of those
    that are over."""

    shares: dict[str, float]
    over: dict[str, str | None]


class _Bundle:
    """Cells that one worker was given."""

    def __init__(self, cells: Sequence[Cell], watcher: Watcher, ended: Callable[[Cell, str | None], None]) -> None:
        self.cells, self._watcher, self._ended = cells, watcher, ended
        self._begun: set[str] = set()
        self._over: set[str] = set()

    def heard(self, news: _News) -> None:
        for cell in self.cells:
            if cell.name in self._over or cell.name not in news.shares:
                continue
            if cell.name not in self._begun:
                self._begun.add(cell.name)
                self._watcher.started(cell)
            if cell.name in news.over:
                self._over.add(cell.name)
                self._ended(cell, news.over[cell.name])
            else:
                self._watcher.advanced(cell, news.shares[cell.name])

    def left(self) -> list[Cell]:
        """Return the cells that are not over."""
        return [cell for cell in self.cells if cell.name not in self._over]

    def fail(self, error: str) -> None:
        """End the cells at hand."""
        self.heard(_News(dict.fromkeys(self._begun, 0.0), dict.fromkeys(self._begun, error)))


def _side_by_side(
    cells: Sequence[Cell], out: Path, workers: Crew, watcher: Watcher, replace: bool
) -> dict[str, Outcome]:
    waiting = deque(bundles(cells, workers.count))
    at_work: dict[int, _Bundle] = {}
    outcomes: dict[str, Outcome] = {}

    def ended(cell: Cell, error: str | None) -> None:
        outcomes[cell.name] = _outcome(cell, out, error)
        watcher.ended(cell, outcomes[cell.name])

    with on_ctrl_c() as asked:
        while waiting or at_work:
            if asked.is_set():
                workers.stop()
                waiting.clear()
            while waiting and len(at_work) < workers.count:
                bundle = _Bundle(waiting.popleft(), watcher, ended)
                at_work[workers.submit((bundle.cells, out, replace))] = bundle
                bundle.heard(_News({bundle.cells[0].name: 0.0}, {}))  # it begins at once
            for event in workers.wait(0.2):
                bundle = at_work[event.ticket]
                if event.kind == "said":
                    bundle.heard(event.value)
                    continue
                del at_work[event.ticket]
                if event.kind == "done":
                    bundle.heard(event.value)
                elif event.kind == "failed":
                    bundle.fail(event.value.message)
                elif asked.is_set() or len(bundle.left()) == 1:
                    bundle.fail(event.value)
                # What a lost process leaves goes on alone, so that a crash takes only its own cell.
                waiting.extend([cell] for cell in bundle.left() if not asked.is_set())
    return outcomes


def _outcome(cell: Cell, out: Path, error: str | None) -> Outcome:
    if error is not None:
        return error
    try:
        return read(out / cell.name, cell.config) or "it left no summary.json"
    except FastaggError as damaged:
        return str(damaged)


def _begin() -> Do:
    return _work


def _work(task: tuple[Sequence[Cell], Path, bool], arrays: Sequence[Tensor], line: Line) -> _News:
    """A bundle in a process of its own."""
    cells, out, replace = task
    told = _Telegraph(line)
    deque(_run(cells, out, told, replace, line.stopped, told.enough), maxlen=0)
    return told.news


class _Telegraph:
    """A watcher that tells the other side. When that is gone the line breaks, and the bundle ends.

    Of what has not changed much it tells at most twice a second.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._sent = 0.0
        self._alone = False
        self.news = _News({}, {})

    def enough(self) -> bool:
        """Whether no other cell should start: the clients of these train one by one, so any worker may take the
        rest."""
        return self._alone or self._line.stopped()

    def started(self, cell: Cell) -> None:
        self.news.shares[cell.name] = 0.0
        self._say()

    def advanced(self, cell: Cell, share: float) -> None:
        self.news.shares[cell.name] = float(share)
        if time.monotonic() - self._sent > 0.5:
            self._say()

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        self.news.over[cell.name] = outcome if isinstance(outcome, str) else None
        self._alone = isinstance(outcome, Result) and outcome.summary["batched"] is not True
        self._say()

    def _say(self) -> None:
        self._sent = time.monotonic()
        self._line.say(_News(dict(self.news.shares), dict(self.news.over)))  # it may be read later
