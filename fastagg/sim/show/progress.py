"""What a run and a comparison tell while they go on; :mod:`fastagg.bars` has bars of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastagg.sim.runs.metrics import EvaluationRow

if TYPE_CHECKING:
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.runs.result import Outcome


class Progress:
    """Called by a run while it goes on. This class does nothing."""

    def advanced(self, share: float) -> None:
        """Called for every client update with the share of the run that is done."""

    def evaluated(self, row: EvaluationRow) -> None:
        """Called with every new evaluation's row."""


class Watcher:
    """Called by a comparison about its runs. This class does nothing."""

    def begun(self, runs: int) -> None:
        """Called with the number of runs."""

    def started(self, cell: Cell) -> None: ...

    def advanced(self, cell: Cell, share: float) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None: ...
