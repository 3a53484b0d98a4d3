"""What a run and a comparison tell while they go on; the command line has bars of it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from fastagg.sim.runs.metrics import Row, duration

if TYPE_CHECKING:
    from fastagg.sim.recipes.tables import Cell
    from fastagg.sim.runs.result import Outcome


class Progress:
    """What a run tells while it goes on. This one says nothing."""

    def advanced(self, share: float) -> None:
        """Called for every client update with the share of the run that is done."""

    def evaluated(self, row: Row) -> None:
        """Called with every new row."""


class Watcher:
    """What a comparison tells of its runs. This one says nothing."""

    def begun(self, runs: int) -> None:
        """Called with how many runs are compared."""

    def started(self, cell: Cell) -> None: ...

    def advanced(self, cell: Cell, share: float) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None: ...


class Printed(Watcher):
    """Tells on stderr how many runs are over, and how long the others will take: on a terminal in a bar, else in a line
    every half minute."""

    def begun(self, runs: int) -> None:
        self._runs, self._over, self._shares = runs, 0, dict[str, float]()
        self._start = self._last = time.monotonic()

    def advanced(self, cell: Cell, share: float) -> None:
        self._shares[cell.name] = share
        self._print()

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        self._shares.pop(cell.name, None)
        self._over += 1
        self._print()

    def _print(self) -> None:
        now, over, bar = time.monotonic(), self._over == self._runs, sys.stderr.isatty()
        done = self._over + sum(self._shares.values())
        if now - self._last < (0.1 if bar else 30) and not (bar and over):
            return
        self._last, passed = now, now - self._start
        left = duration(passed * (self._runs - done) / max(done, 1e-9), "1 s")
        text = f"{self._over} of {self._runs} runs after {duration(passed, '1 s')}, {left} left"
        line = f"\r[{'#' * int(30 * done / self._runs):30}] {text}\033[K" if bar else text
        print(line, end="" if bar and not over else "\n", file=sys.stderr, flush=True)
