"""Evaluates versions on the server in order, by default in a thread while updates are received.

This module also averages clients' metrics. A :class:`~fastagg.integrations.session.Session` calls it from one thread.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from fastagg._types import Arrays
from fastagg.server.dispatch import Dispatch
from fastagg.trackers import numeric

Metrics = Mapping[str, object] | None
# The most models that may wait for their evaluation. If so many models wait already, `add` waits until the running
# evaluation has ended.
_WAITING = 2
Result = tuple[Metrics, str | None]  # an evaluation's metrics, and the reason why the run must end, or None


def ended(error: StopIteration, version: int) -> Result:
    """Return the metrics (or None) and the reason in ``error``, which the evaluation of ``version`` raised."""
    reason = f"the evaluation of version {version} said so"
    if isinstance(error.value, Mapping):
        return error.value, reason
    return None, (str(error.args[0]) if error.args else "") or reason


class Evaluation:
    """Evaluates the versions that are due, and returns all versions in order with their metrics.

    Args:
        evaluate: ``evaluate(version, model)`` returns metrics or None. If ``evaluate`` is None, no version is due.
        aside: whether versions are evaluated in a thread. If False, :meth:`add` evaluates, and its caller waits.
    """

    def __init__(self, evaluate: Callable[[int, Arrays], Metrics] | None, aside: bool) -> None:
        self._evaluate = evaluate
        self._pool = ThreadPoolExecutor(1, "fastagg-evaluation") if aside and evaluate is not None else None
        self._running: deque[tuple[int, Arrays, Future[Result]]] = deque()
        self._last = -1  # the last version that was due

    @property
    def waiting(self) -> list[int]:
        """The versions whose evaluation has not ended."""
        return [version for version, _, future in list(self._running) if not future.done()]

    def knows(self, version: int) -> bool:
        """Whether ``version`` needs no evaluation: it was due before, or there is no evaluation function."""
        return self._evaluate is None or version <= self._last

    def skip(self, version: int) -> None:
        """Note that ``version`` was evaluated before a restart, and needs no evaluation."""
        self._last = max(self._last, version)

    def add(self, version: int, model: Arrays, due: bool) -> None:
        """Add the next version. ``due``: whether to evaluate the version. The newest version may be added a second time
        if it has become due. ``model`` must not change. If ``_WAITING`` models wait already, the call waits.
        """
        future: Future[Result] = Future()
        if not due or self.knows(version):
            future.set_result((None, None))
        else:
            self._last = version
            if self._pool is None:
                future.set_result(self._once(version, model))
            else:
                waiting = [future for *_, future in self._running if not future.done()]
                if len(waiting) > _WAITING:
                    waiting[0].exception()  # waits until this evaluation has ended. finished() raises its error.
                future = self._pool.submit(self._once, version, model)
        if self._running and self._running[-1][0] == version:  # replace this version's entry, which was not due
            self._running.pop()
        self._running.append((version, model, future))

    def finished(self, wait: bool = False) -> list[tuple[int, Arrays, Metrics, str | None]]:
        """Return and remove the oldest versions, before the first whose evaluation has not ended. If ``wait`` is true,
        wait for all. Each item has the number, the model, the metrics, and the reason why the run ends or None.

        Raises:
            Exception: the error of ``evaluate``.
        """
        rows = []
        while self._running and (wait or self._running[0][2].done()):
            version, model, future = self._running.popleft()
            rows.append((version, model, *future.result()))
        return rows

    def close(self) -> None:
        """Drop evaluations that have not begun, and wait for a running one."""
        self._running.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _once(self, version: int, model: Arrays) -> Result:
        assert self._evaluate is not None
        try:
            return self._evaluate(version, model), None
        except StopIteration as error:
            return ended(error, version)


class Window:
    """Averages the metrics of several replies. Each client evaluates the version that it was sent. The means are
    assigned to the newest of these versions."""

    def __init__(self) -> None:
        self._newest: Dispatch | None = None  # the task with the newest version among the replies' tasks
        self._count = 0
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, task: Dispatch, metrics: Mapping[str, object] | None) -> None:
        """Add the metrics of a reply to ``task``. Metrics that are not finite numbers are left out."""
        self._count += 1
        if self._newest is None or task.version > self._newest.version:
            self._newest = task
        for name, value in numeric(metrics or {}).items():
            if math.isfinite(value):
                self._values[name].append(value)

    def end(self, clients: int) -> tuple[Dispatch, dict[str, float]] | None:
        """If there are at least ``clients`` replies, remove all and return the task with the newest version, and each
        metric's mean over the replies that have the metric. None: there are fewer replies."""
        newest, values = self._newest, self._values
        if newest is None or self._count < clients:
            return None
        self._newest, self._count, self._values = None, 0, defaultdict(list)
        return newest, {name: math.fsum(column) / len(column) for name, column in values.items()}
