"""What the runs of one process wait for, trained together: jobs of several runs share stacks.

A run hands in its jobs and rests. When all runs rest, ``train`` does the work of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fastagg.sim import batched
from fastagg.sim.batched import BatchedTrainer
from fastagg.sim.client import Update
from fastagg.sim.schedule import Job


class Owner(Protocol):
    """Who handed jobs in."""

    def trained(self, group: int, updates: list[Update], seconds: float) -> None:
        """Take a group's updates, and its share of the wall seconds."""

    def failed(self, error: Exception) -> None:
        """Learn that training a group raised ``error``."""


@dataclass(frozen=True)
class Order:
    """A group of jobs that wait."""

    owner: Owner
    group: int
    trainer: BatchedTrainer
    jobs: Sequence[Job]


class Stacks:
    def __init__(self) -> None:
        self._waiting: list[Order] = []

    def add(self, order: Order) -> None:
        self._waiting.append(order)

    def forget(self, owner: Owner) -> None:
        """Drop the jobs of a run that has ended."""
        self._waiting = [order for order in self._waiting if order.owner is not owner]

    def train(self) -> None:
        """Train all that wait. Trainers of one kind share stacks; no bit of an update depends on it."""
        waiting, self._waiting = self._waiting, []
        kinds: dict[Hashable, list[Order]] = {}
        for order in waiting:
            kinds.setdefault(order.trainer.kind, []).append(order)
        for orders in kinds.values():
            _train(orders)


def _train(orders: Sequence[Order]) -> None:
    begun = time.perf_counter()
    try:
        updates = iter(batched.train([(order.trainer, job) for order in orders for job in order.jobs]))
    except Exception as error:
        if len(orders) == 1:
            orders[0].owner.failed(error)
            return
        for order in orders:  # one run must not take the others with it
            _train([order])
        return
    seconds = (time.perf_counter() - begun) / sum(len(order.jobs) for order in orders)
    for order in orders:
        order.owner.trained(order.group, [next(updates) for _ in order.jobs], seconds * len(order.jobs))
