"""Virtual time: an event queue that never goes back. Ties are broken by the order of scheduling."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from fastagg._types import State

Item = TypeVar("Item")


class VirtualClock(Generic[Item]):
    """Events ordered by virtual time. Events with the same time come out in the order in which they were scheduled.

    ``now`` is the time of the last event taken out, 0.0 at the start. Its unit is the delay model's.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._scheduled = 0
        # The running number makes every entry distinct, so items are never compared with each other.
        self._heap: list[tuple[float, int, Item]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, delay: float, item: Item) -> float:
        """Schedule ``item`` to happen ``delay`` from now and return the time. ValueError if the delay is negative or
        NaN."""
        if not (delay >= 0.0 and math.isfinite(delay)):
            raise ValueError(f"a delay must be finite and at least 0, got {delay}")
        due = self.now + delay
        heapq.heappush(self._heap, (due, self._scheduled, item))
        self._scheduled += 1
        return due

    def next(self) -> Item:
        """Take the next event out and move ``now`` to its time. IndexError if nothing is scheduled."""
        due, _, item = heapq.heappop(self._heap)
        self.now = due
        return item

    def next_time(self) -> float:
        """Return the time of the next event. IndexError if nothing is scheduled."""
        return self._heap[0][0]

    def remove(self, unwanted: Callable[[Item], bool]) -> list[Item]:
        """Remove and return the items that ``unwanted`` selects. The others keep their times."""
        gone = [item for item in self.in_flight() if unwanted(item)]
        self._heap = [entry for entry in self._heap if not unwanted(entry[2])]
        heapq.heapify(self._heap)
        return gone

    def events(self, item: Callable[[Item], State]) -> State:
        """Return the clock as plain data. ``item`` converts the scheduled items."""
        heap = [(due, order, item(entry)) for due, order, entry in self._heap]
        return {"now": self.now, "scheduled": self._scheduled, "heap": heap}

    def load_events(self, state: State, item: Callable[[State], Item]) -> None:
        """Inverse of :meth:`events`."""
        self.now, self._scheduled = state["now"], state["scheduled"]
        self._heap = [(due, order, item(entry)) for due, order, entry in state["heap"]]

    def in_flight(self) -> list[Item]:
        """Return the scheduled items, earliest first."""
        return [item for _, _, item in sorted(self._heap)]  # by time, then by their running number
