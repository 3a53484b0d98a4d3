"""What a run tells the outside while it goes: a rich progress bar, or nothing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fastagg.sim.metrics import Row


class Progress(Protocol):
    def advanced(self, share: float) -> None: ...

    def evaluated(self, row: Row) -> None: ...


class NoProgress:
    def advanced(self, share: float) -> None:
        """Called for every client update with the share of the run that is over."""

    def evaluated(self, row: Row) -> None:
        """Called with every new row."""


class ProgressBar:
    """A bar on stderr with the latest accuracy; silent where stderr is not a terminal."""

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
        # An update of a tiny model takes a millisecond; telling rich about each would be felt.
        now = time.perf_counter()
        if now - self._drawn > 0.1:
            self._drawn = now
            self._bar.update(self._task, completed=share)

    def evaluated(self, row: Row) -> None:
        self._bar.update(self._task, state=f"version {row.version}, accuracy {row.accuracy:.1%}")
