"""What a worker is given and what it tells, whatever process it is.

A worker begins once: ``begin(*given)`` builds what it needs and returns what does a task. ``begin`` is a function of a
module, and ``given`` and tasks can be pickled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from fastagg.errors import FastaggError, RunFailed

Sent = Any  # what goes from process to process: a task, a result. It can be pickled


class Line(Protocol):
    """A worker's line to who asked for the task."""

    def say(self, value: Sent) -> None:
        """Tell how far the task is."""

    def stopped(self) -> bool:
        """Whether the task is asked to stop."""


# Does a task, with the arrays that go with it (to be read only).
Do = Callable[[Sent, Sequence[Tensor], Line], Sent]
Begin = Callable[..., Do]


class Failure(NamedTuple):
    """An exception of a worker: its message, and where it happened."""

    message: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        message = str(error) if isinstance(error, FastaggError) else f"{type(error).__name__}: {error}"
        return cls(message, "".join(traceback.format_exception(error)))

    def error(self, what: str) -> RunFailed:
        """As an exception whose message begins with ``what``."""
        error = RunFailed(f"{what}: {self.message[:400]}")
        error.add_note(f"The worker's own traceback:\n{self.trace}")
        return error


class Event(NamedTuple):
    """What became of a task. The value: of "said" what the worker said, of "done" the result, of "failed" a
    :class:`Failure`, of "lost" how the worker ended."""

    ticket: int
    kind: Literal["said", "done", "failed", "lost"]
    value: Sent
