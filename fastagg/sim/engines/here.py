"""The engine of this process: it trains when an update is due, or ahead of time in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from fastagg.sim.client import Update
from fastagg.sim.engines.training import Work
from fastagg.sim.schedule import Job


class Here:
    """Trains one client after the other."""

    parts = 1
    eager = False

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiting: deque[tuple[int, Job]] = deque()
        self._tickets = 0

    def submit(self, job: Job) -> int:
        self._tickets += 1
        self._waiting.append((self._tickets, job))
        return self._tickets

    def collect(self, wait: bool) -> list[tuple[int, Update]]:
        if not wait:
            return []
        ticket, job = self._waiting.popleft()
        return [(ticket, self._work(job))]

    def keep(self, versions: Collection[int]) -> None:
        """Nothing: weights are the server's own."""

    def close(self) -> None:
        self._waiting.clear()


class Threads:
    """Trains as many clients at once as it has threads. Their work must be safe to do so."""

    eager = True

    def __init__(self, work: Work, count: int) -> None:
        self.parts, self._work = count, work
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="fastagg-client")
        self._out: dict[Future[Update], int] = {}
        self._tickets = 0

    def submit(self, job: Job) -> int:
        self._tickets += 1
        self._out[self._pool.submit(self._work, job)] = self._tickets
        return self._tickets

    def collect(self, wait: bool) -> list[tuple[int, Update]]:
        done = _first(self._out) if wait else [future for future in self._out if future.done()]
        return [(self._out.pop(future), future.result()) for future in done]

    def keep(self, versions: Collection[int]) -> None:
        """Nothing: weights are the server's own."""

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _first(futures: Collection[Future[Update]]) -> Collection[Future[Update]]:
    return wait(futures, return_when=FIRST_COMPLETED).done
