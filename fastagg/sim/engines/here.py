"""The engine of this process: it trains when an update is due."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from fastagg.sim.client import Update
from fastagg.sim.engines.stacks import Order, Stacks
from fastagg.sim.engines.training import Training
from fastagg.sim.schedule import Job


class Here:
    """Trains one by one, or in ``stacks``, which other runs may share.

    Args:
        spent: is told the wall seconds that the stacks took for this run while it rested.
    """

    parts = 1
    eager = False

    def __init__(self, training: Training, stacks: Stacks, spent: Callable[[float], None]) -> None:
        self._training, self._stacks, self._spent = training, stacks, spent
        self._waiting: deque[tuple[int, Sequence[Job]]] = deque()
        self._done: list[tuple[int, list[Update]]] = []
        self._error: Exception | None = None
        self._rests = True
        self._groups = 0

    def submit(self, jobs: Sequence[Job]) -> int:
        self._groups += 1
        if self._training.batched is None:
            self._waiting.append((self._groups, jobs))
        else:
            self._stacks.add(Order(self, self._groups, self._training.batched, jobs))
        return self._groups

    def collect(self, wait: bool) -> list[tuple[int, list[Update]]]:
        if not wait:
            return []
        if self._training.batched is None:
            group, jobs = self._waiting.popleft()
            return [(group, self._training.train(jobs))]
        if not self._done and self._error is None:
            self._rests = False  # whoever asks counts the time himself
            self._stacks.train()
            self._rests = True
        if self._error is not None:
            raise self._error
        done, self._done = self._done, []
        return done

    def trained(self, group: int, updates: list[Update], seconds: float) -> None:
        self._done.append((group, updates))
        if self._rests:
            self._spent(seconds)

    def failed(self, error: Exception) -> None:
        self._error = error

    def keep(self, versions: Collection[int]) -> None:
        """Nothing: weights are the server's own."""

    def close(self) -> None:
        self._waiting.clear()
        self._stacks.forget(self)
