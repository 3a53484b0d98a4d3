"""Measures wall seconds by activity, for the reports of the simulator, of distillation and of checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterable


class Timing:
    """A context that adds the wall seconds of its ``with`` block to ``seconds[activity]``. It is a class, because a
    context of contextlib.contextmanager would take three times as long."""

    __slots__ = ("_activity", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], activity: str) -> None:
        self._seconds, self._activity = seconds, activity

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._activity] += time.perf_counter() - self._start


class Stopwatch:
    """Measures the wall seconds since this object was made, and the wall seconds of each activity.

    Args:
        activities: the names of the activities. :meth:`timing` accepts no others.
    """

    def __init__(self, activities: Iterable[str] = ()) -> None:
        self.seconds = dict.fromkeys(activities, 0.0)
        self._started = time.perf_counter()

    @property
    def total(self) -> float:
        return time.perf_counter() - self._started

    def timing(self, activity: str) -> Timing:
        """Return a context that adds the wall seconds of its ``with`` block to the activity's seconds."""
        return Timing(self.seconds, activity)

    def restore(self, split: dict[str, float]) -> None:
        """Continue from ``split``, the result of :meth:`split` in an earlier process."""
        self.seconds = {activity: split[activity] for activity in self.seconds}
        self._started = time.perf_counter() - split["total"]

    def split(self) -> dict[str, float]:
        """Return the seconds of each activity, ``other`` (the seconds outside all activities) and ``total``."""
        total = self.total
        return {**self.seconds, "other": total - sum(self.seconds.values()), "total": total}
