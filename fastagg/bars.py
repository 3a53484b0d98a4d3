"""Shows the progress of runs and comparisons on stderr: as a bar in a terminal, otherwise as lines. The command line
and the simulator use this module."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich import progress as rich
from rich.console import Console

from fastagg.sim.runs.metrics import EvaluationRow, duration
from fastagg.sim.show.progress import Progress, Watcher

if TYPE_CHECKING:
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.runs.result import Outcome

EVERY = 30.0  # the least seconds between two lines of progress if there is no terminal


class _Bar(rich.Progress):
    """A bar on stderr with a text, the percentage, the elapsed time and the remaining time.

    Without a terminal, :meth:`show` prints a line instead, at most once in :data:`EVERY` seconds."""

    def __init__(self, total: float, words: str, console: Console | None) -> None:
        console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        text, bar = rich.TextColumn("{task.description}", markup=False), rich.BarColumn(bar_width=None)
        times = rich.TimeElapsedColumn(), rich.TextColumn("left:"), rich.TimeRemainingColumn()
        super().__init__(
            *(text, bar, rich.TaskProgressColumn(), *times),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,
            speed_estimate_period=600,
        )
        self.add_task(words, total=total)
        self._drawn = self._printed = time.monotonic()

    def show(self, completed: float, words: str, *, now: bool = False) -> None:
        """Draw the progress, unless it was drawn in the last tenth of a second. With ``now``, always draw it.

        An update of a tiny model takes a millisecond. Drawing the bar after each update would slow the run down."""
        clock, (task,) = time.monotonic(), self.tasks
        if not now and clock - self._drawn < 0.1:
            return
        self._drawn = clock
        self.update(task.id, completed=completed, description=words)
        if not self.console.is_terminal and clock - self._printed >= EVERY:
            self._printed = clock
            left = "" if task.time_remaining is None else f", {duration(task.time_remaining, '1 s')} left"
            self.console.print(f"{words}: {task.percentage:.0f}% after {duration(task.elapsed or 0, '1 s')}{left}")


class ProgressBar(_Bar, Progress):
    """Shows the progress of one run, with the run's latest accuracy."""

    def __init__(self, label: str, console: Console | None = None) -> None:
        super().__init__(1.0, label, console)
        self._label, self._words, self._share = label, label, 0.0

    def advanced(self, share: float) -> None:
        self._share = share
        self.show(share, self._words)

    def evaluated(self, row: EvaluationRow) -> None:
        self._words = f"{self._label}: version {row.version}, accuracy {row.accuracy:.1%}"
        self.show(self._share, self._words)


class CellsBar(_Bar, Watcher):
    """Shows the progress of all runs of a comparison, and prints a line for each run that has ended."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(0, "", console)
        self.begun(0)

    def begun(self, runs: int) -> None:
        self._cells, self._over = runs, 0
        self._shares: dict[str, float] = {}
        self.reset(self.tasks[0].id, total=runs)
        self._draw()

    def started(self, cell: Cell) -> None:
        self._shares[cell.name] = 0.0
        self._draw()

    def advanced(self, cell: Cell, share: float) -> None:
        self._shares[cell.name] = share
        self._draw(now=False)

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        del self._shares[cell.name]
        self._over += 1
        if isinstance(outcome, str):
            self.console.print(f"{cell.name}: failed: {' '.join(outcome.split())}", style="red", markup=False)
        else:
            end, wall = outcome.summary["final_accuracy"], outcome.summary["wall_seconds"]["total"]
            self.console.print(
                f"{cell.name}: {'diverged' if end is None else f'{end:.1%}'}, {wall:.1f} s", markup=False
            )
        self._draw()

    def _draw(self, now: bool = True) -> None:
        done, running = self._over + sum(self._shares.values()), len(self._shares)
        more = f", {running} running" if running else ""
        self.show(done, f"{self._over} of {self._cells} runs{more}", now=now)
