"""The progress that a run shows: a rich progress bar, or nothing."""

from __future__ import annotations

import time
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fastagg.integrations.trackers import Trackers
from fastagg.sim.metrics import Row

if TYPE_CHECKING:
    from fastagg.sim.result import Outcome
    from fastagg.sim.sweep import Cell


class Progress(Protocol):
    def advanced(self, share: float) -> None: ...

    def evaluated(self, row: Row) -> None: ...


class NoProgress:
    def advanced(self, share: float) -> None:
        """Called for every client update with the share of the run that is done."""

    def evaluated(self, row: Row) -> None:
        """Called with every new row."""


class Tracking:
    """Sends every row to the trackers, and everything to ``progress``. As a context it closes the trackers at its
    end."""

    def __init__(self, progress: Progress, trackers: Any) -> None:
        self._progress, self._trackers = progress, Trackers(trackers)

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *_: object) -> None:
        self._trackers.close()

    def advanced(self, share: float) -> None:
        self._progress.advanced(share)

    def evaluated(self, row: Row) -> None:
        self._progress.evaluated(row)
        self._trackers.log({key: value for key, value in asdict(row).items() if key != "version"}, row.version)


class ProgressBar:
    """A bar on stderr with the latest accuracy. Shows nothing if stderr is not a terminal."""

    def __init__(self, label: str) -> None:
        console = Console(stderr=True)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(label, total=1.0, state="")
        self._drawn = 0.0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advanced(self, share: float) -> None:
        # An update of a tiny model takes a millisecond. Reporting each one to rich would slow the run down.
        now = time.perf_counter()
        if now - self._drawn > 0.1:
            self._drawn = now
            self._bar.update(self._task, completed=share)

    def evaluated(self, row: Row) -> None:
        self._bar.update(self._task, state=f"version {row.version}, accuracy {row.accuracy:.1%}")


class CellsBar:
    """A bar on stderr for all cells of a comparison, and a line for each cell that ends."""

    def __init__(self, cells: int) -> None:
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._console = console
        self._bar = RichProgress(
            TextColumn("{task.completed:.1f} of {task.total} runs"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=cells, state="")
        self._over = 0
        self._shares: dict[str, float] = {}
        self._drawn = 0.0

    def __enter__(self) -> CellsBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def started(self, cell: Cell) -> None:
        self._shares[cell.name] = 0.0
        self._draw()

    def advanced(self, cell: Cell, share: float) -> None:
        self._shares[cell.name] = share
        if time.perf_counter() - self._drawn > 0.1:
            self._draw()

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        del self._shares[cell.name]
        self._over += 1
        if isinstance(outcome, str):
            self._console.print(f"{cell.name}: failed: {' '.join(outcome.split())}", style="red", markup=False)
        else:
            wall = outcome.summary["wall_seconds"]["total"]
            text = f"{cell.name}: {outcome.summary['final_accuracy']:.1%}, {wall:.1f} s"
            self._console.print(text, markup=False)
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        completed = self._over + sum(self._shares.values())
        first, others = list(self._shares)[:2], len(self._shares) - 2
        state = ", ".join(first) + (f" and {others} more" if others > 0 else "")
        self._bar.update(self._task, completed=completed, state=state)
