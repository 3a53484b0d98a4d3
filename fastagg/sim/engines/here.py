"""The engine of this process: it trains when it is asked for an update."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from fastagg.sim.engines.training import Training
from fastagg.sim.schedule import Job


class Here:
    parts = 1
    eager = False

    def __init__(self, training: Training) -> None:
        self._training = training
        self._waiting: deque[tuple[int, Sequence[Job]]] = deque()
        self._groups = 0

    def submit(self, jobs: Sequence[Job]) -> int:
        self._groups += 1
        self._waiting.append((self._groups, jobs))
        return self._groups

    def collect(self, wait: bool) -> list[tuple[int, list[Any]]]:
        if not wait:
            return []
        group, jobs = self._waiting.popleft()
        return [(group, self._training.train(jobs))]

    def keep(self, versions: Collection[int]) -> None:
        """Nothing: weights are the server's own."""

    def close(self) -> None:
        self._waiting.clear()
