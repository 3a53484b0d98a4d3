"""Clients that fail: how long each is left alone, and when a cause is permanent and ends the run."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from fastagg import _checks
from fastagg.errors import RunFailed

_LONGEST = 300.0  # seconds between two tasks of a client that keeps failing, at most


@dataclass
class _Client:
    failures: int = 0  # since it last sent an update that was taken
    until: float = 0.0  # when it is asked again


class Failures:
    """Who failed how often, and whether that is the end.

    A client that fails is left alone for ``retry_after`` seconds, twice as long each time (300 s at most), and for
    good after ``max_failures`` failures in a row. The run ends with :class:`fastagg.RunFailed`, which carries the last
    cause, when every client that is there is left alone for good, after ``max_in_a_row`` failures of whatever clients
    without an update between them, or after ``max_seconds`` without an update.

    Args:
        max_failures: in a row, of one client; None: no limit.
        max_in_a_row: over all clients; None: no limit.
        retry_after: seconds, >= 0.
        max_seconds: None: no limit.
        clock: seconds.

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
        """Note a failure; the seconds that ``client`` is left alone, infinity for good.

        Raises:
            RunFailed: that was one too many.
        """
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
        """An update of ``client`` was taken."""
        self._clients.pop(client, None)
        self._row.clear()
        self._since = self._clock()

    def rests(self, client: Hashable) -> bool:
        """Whether ``client`` is to be left alone now."""
        one = self._clients.get(client)
        return one is not None and one.until > self._clock()

    def is_out(self, client: Hashable) -> bool:
        """Whether ``client`` is left alone for good."""
        one = self._clients.get(client)
        return one is not None and one.until == math.inf

    def check(self, here: Iterable[Hashable]) -> None:
        """Whether the run can go on with the clients that are ``here``.

        Raises:
            RunFailed: none of them is asked any more, or nothing was taken for too long.
        """
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
