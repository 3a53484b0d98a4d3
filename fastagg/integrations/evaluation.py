"""Evaluation of versions, in order, in a thread of its own while updates are received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from fastagg._types import Arrays

Found = Mapping[str, object] | None
_WAITING = 2  # models kept for an evaluation that has not begun; then who submits waits for the first one


class Ended(Exception):
    """An evaluation raised StopIteration, so the run ends. ``found`` holds its metrics, if any."""

    def __init__(self, error: StopIteration) -> None:
        self.found: Found = error.value if isinstance(error.value, Mapping) else None
        self.why = "" if self.found is not None or not error.args else str(error.args[0])
        super().__init__(self.why)


class Evaluation:
    """Versions in order, with the metrics that ``evaluate(version, model)`` returns for those that are due.

    Args:
        evaluate: returns metrics, or None. If it is None, no version is due.
        aside: evaluate in a thread while the caller continues. Otherwise the caller waits.
    """

    def __init__(self, evaluate: Callable[[int, Arrays], Found] | None, aside: bool) -> None:
        self._evaluate = evaluate
        self._pool = ThreadPoolExecutor(1, "fastagg-evaluation") if aside and evaluate is not None else None
        self._running: deque[tuple[int, Arrays, Future[tuple[Found, Ended | None]]]] = deque()
        self._last = -1  # the last version that was due

    def knows(self, version: int) -> bool:
        """Whether ``version`` was due, or nothing ever is."""
        return self._evaluate is None or version <= self._last

    def skip(self, version: int) -> None:
        """Skip ``version``, which was evaluated before a restart."""
        self._last = max(self._last, version)

    def add(self, version: int, model: Arrays, due: bool) -> None:
        """Add the next version, or the last one again if it has become due. Its ``model`` must not change.

        The call waits while too many versions wait.
        """
        done: Future[tuple[Found, Ended | None]] = Future()
        if not due or self.knows(version):
            done.set_result((None, None))
        else:
            self._last = version
            if self._pool is None:
                done.set_result(self._once(version, model))
            else:
                waiting = [future for *_, future in self._running if not future.done()]
                if len(waiting) > _WAITING:
                    waiting[0].exception()  # its end; finished() raises what it raised
                done = self._pool.submit(self._once, version, model)
        if self._running and self._running[-1][0] == version:  # it was not due, and waits behind one that is evaluated
            self._running.pop()
        self._running.append((version, model, done))

    def finished(self, wait: bool = False) -> list[tuple[int, Arrays, Found, Ended | None]]:
        """Return finished versions, or with ``wait`` all: version, model, metrics, and whether the run ends.

        Raises:
            Exception: the error of ``evaluate``.
        """
        found = []
        while self._running and (wait or self._running[0][2].done()):
            version, model, future = self._running.popleft()
            found.append((version, model, *future.result()))
        return found

    def close(self) -> None:
        """Drop evaluations that have not begun, and wait for a running one."""
        self._running.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _once(self, version: int, model: Arrays) -> tuple[Found, Ended | None]:
        assert self._evaluate is not None
        try:
            return self._evaluate(version, model), None
        except StopIteration as error:
            ended = Ended(error)
            return ended.found, ended
