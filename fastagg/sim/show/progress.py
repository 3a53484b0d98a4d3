"""The callbacks of a run and of a comparison about their progress. :mod:`fastagg.bars` shows the progress as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastagg.sim.runs.metrics import EvaluationRow

if TYPE_CHECKING:
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.runs.result import Outcome


class Progress:
    """Callbacks of a run. In this class they do nothing."""

    def advanced(self, share: float) -> None:
        """Called before every client update, and at the end. ``share``: the finished share of the run, from 0 to 1."""

    def evaluated(self, row: EvaluationRow) -> None:
        """Called after every evaluation, with its row of metrics.csv."""


class Watcher:
    """Callbacks of a comparison about its cells. In this class they do nothing."""

    def begun(self, runs: int) -> None:
        """Called once, before the first run. ``runs``: the number of all runs."""

    def started(self, cell: Cell) -> None: ...

    def advanced(self, cell: Cell, share: float) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None: ...
