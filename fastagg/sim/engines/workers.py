"""What a worker is given and what it tells, whatever process it is.

A worker begins once: ``begin(*given)`` builds what it needs and returns what does a task. ``begin`` is a function of a
module, and ``given``, tasks and results can be pickled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from fastagg.errors import FastaggError, RunFailed

Sent = Any  # what goes from process to process: a task, weights, a result
Do = Callable[[Sent, Sent], Sent]  # takes a task and the weights that go with it
Begin = Callable[..., Do]


class Workers(Protocol):
    """``count`` processes that each do one task after the other."""

    count: int

    def put(self, weights: Sent) -> object:
        """Lay weights where every worker can read them. They stay as long as somebody holds what is returned."""

    def submit(self, task: Sent, weights: object = None) -> Future[Any]:
        """Have a task done. An exception: a worker died, or never was there."""

    def read(self, future: Future[Any]) -> Sent:
        """Return what a task that is over returned, which may be a :class:`Failure`, or raise its exception."""

    def close(self) -> None:
        """End all workers at once."""


class Failure(NamedTuple):
    """An exception of a worker: its message, where it happened, and whether it kept the worker from beginning."""

    message: str
    trace: str
    early: bool = False

    def error(self, what: str) -> RunFailed:
        """As an exception whose message begins with ``what``."""
        error = RunFailed(f"{'a worker cannot begin' if self.early else what}: {self.message[:400]}")
        error.add_note(f"The worker's own traceback:\n{self.trace}")
        return error


def attempt(do: Callable[..., Sent], *arguments: object, early: bool = False) -> Sent:
    """Return what ``do`` returns, or a Failure: an exception of any class need not be possible to pickle."""
    try:
        return do(*arguments)
    except Exception as error:
        message = str(error) if isinstance(error, FastaggError) else f"{type(error).__name__}: {error}"
        return Failure(message, "".join(traceback.format_exception(error)), early)


def work(do: Do | Failure, task: Sent, weights: Sent) -> Sent:
    """Do a task with what ``attempt(begin)`` returned."""
    return do if isinstance(do, Failure) else attempt(do, task, weights)
