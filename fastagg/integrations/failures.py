"""Clients that fail: how long each one pauses, and when failures end the run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from fastagg import _checks
from fastagg.errors import RunFailed

_LONGEST = 300.0  # the longest pause of a client that keeps failing, in seconds


@dataclass
class _Client:
    failures: int = 0  # since its last update that was taken
    until: float = 0.0  # when it may get a task again


class Failures:
    """Counts failures by client, and ends the run after too many.

    A client that fails gets no task for ``retry_after`` seconds, twice as long after each failure (300 s at most).
    After ``max_failures`` in a row it gets none again. The run ends with :class:`fastagg.RunFailed`, which holds the
    last cause, when all present clients are excluded like this, after ``max_in_a_row`` failures of any clients without
    an update in between, or after ``max_seconds`` without an update.

    Args:
        max_failures: the limit in a row for one client. None: no limit.
        max_in_a_row: the limit in a row over all clients. None: no limit.
        retry_after: seconds, >= 0.
        max_seconds: seconds. None: no limit.
        clock: returns seconds.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        max_failures: int | None = 5,
        max_in_a_row: int | None = 50,
        retry_after: float = 5.0,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (("max_failures", max_failures), ("max_in_a_row", max_in_a_row)):
            if limit is not None:
                _checks.whole(name, limit, least=1)
        if max_seconds is not None:
            _checks.number("max_seconds", max_seconds, above=0)
        self.max_failures, self.max_in_a_row, self.max_seconds = max_failures, max_in_a_row, max_seconds
        self.retry_after = _checks.number("retry_after", retry_after, least=0)
        self._clock, self._clients, self._since, self._last = clock, dict[Hashable, _Client](), clock(), ""
        self._row: Counter[str] = Counter()  # causes since an update was taken

    def failed(self, client: Hashable, cause: str) -> float:
        """Note a failure. Return for how many seconds ``client`` gets no task; infinity if never again."""
        one = self._clients.setdefault(client, _Client())
        one.failures += 1
        self._row[cause] += 1
        self._last = f"client {client}: {cause}"
        wait = min(self.retry_after * 2.0 ** min(one.failures - 1, 30), max(_LONGEST, self.retry_after))
        if self.max_failures is not None and one.failures >= self.max_failures:
            wait = math.inf
        one.until = self._clock() + wait
        if self.max_in_a_row is not None and self._row.total() >= self.max_in_a_row:
            self._end(f"{self._row.total()} failures in a row, and no update between them")
        return wait

    def taken(self, client: Hashable) -> None:
        """Note that an update of ``client`` was taken."""
        self._clients.pop(client, None)
        self._row.clear()
        self._since = self._clock()

    def rests(self, client: Hashable) -> bool:
        """Whether ``client`` gets no task now."""
        one = self._clients.get(client)
        return one is not None and one.until > self._clock()

    def is_out(self, client: Hashable) -> bool:
        """Whether ``client`` never gets a task again."""
        one = self._clients.get(client)
        return one is not None and one.until == math.inf

    def check(self, here: Iterable[Hashable]) -> None:
        """Check that the run can continue with the clients that are ``here``."""
        present = list(here)
        if present and all(self.is_out(client) for client in present):
            self._end(f"each of the {len(present)} clients that are there failed {self.max_failures} times in a row")
        if self.max_seconds is not None and self._clock() - self._since > self.max_seconds:
            some = f"{len(present)} clients are there" if present else "no client is there"
            self._end(f"no update was taken in {self.max_seconds:g} s; {some}")

    def _end(self, why: str) -> None:
        often = self._row.most_common(1)
        most = f"; {often[0][1]} of them: {often[0][0]}" if often and len(self._row) > 1 else ""
        raise RunFailed(f"{why}{most}; the last: {self._last}" if self._last else why)
