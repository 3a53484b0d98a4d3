"""How long a client takes from dispatch to arrival, in virtual time.

A delay model has a ``unit`` (the meaning of 1.0 of virtual time, for labels) and

    duration(client, number) -> float      how long the ``number``-th dispatch (from 0) of ``client`` takes

Draws are keyed by (seed, client, number), see seeds.py. A model can wrap another and add to its duration, as
Suspension does.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fastagg.errors import ConfigError
from fastagg.sim.seeds import generator

# FADAS Table 1: uniform ranges (low, high) of the small, medium and large class, in units of 10 s.
THREE_CLASS_TABLES: dict[str, tuple[tuple[float, float], ...]] = {
    "large": ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0)),
    "mild": ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0)),
}


class DelayModel(Protocol):
    unit: str

    def duration(self, client: int, number: int) -> float: ...


class ThreeClass:
    """Small, medium and large clients (FADAS Section 6, Table 1).

    Each client is put into a class once: the largest component of a Dirichlet([3g, 2g, g]) draw decides, so a
    smaller ``gamma`` puts more clients into the large class. Each dispatch then takes a uniform time from the
    class's range in ``table`` ("large" worst-case or "mild"), in units of 10 s.
    """

    unit = "10 s"

    def __init__(self, clients: int, seed: int, table: str = "large", gamma: float = 1.0) -> None:
        if table not in THREE_CLASS_TABLES:
            raise ConfigError(f"delay table {table!r} is unknown, expected one of {sorted(THREE_CLASS_TABLES)}")
        if not gamma > 0:
            raise ConfigError(f"gamma must be above 0, got {gamma}")
        self._seed = seed
        self._ranges = THREE_CLASS_TABLES[table]
        weights = gamma * np.array([3.0, 2.0, 1.0])
        draws = generator(seed, "delay-class").dirichlet(weights, size=clients)
        self.classes: np.ndarray = draws.argmax(axis=1)  # [clients], 0 small, 1 medium, 2 large

    def duration(self, client: int, number: int) -> float:
        low, high = self._ranges[self.classes[client]]
        return float(generator(self._seed, "delay", client, number).uniform(low, high))


class Exponential:
    """Every dispatch takes an exponential time with mean ``mean`` (the ACE paper's beta: 1, 5, 20 or 30)."""

    unit = "time unit"

    def __init__(self, seed: int, mean: float = 5.0) -> None:
        if not mean > 0:
            raise ConfigError(f"the mean delay must be above 0, got {mean}")
        self._seed = seed
        self._mean = mean

    def duration(self, client: int, number: int) -> float:
        return float(generator(self._seed, "delay", client, number).exponential(self._mean))


class Suspension:
    """With probability ``share`` a client hangs before it trains (AsyncFedED, B.2), on top of ``delays``.

    It hangs for a time drawn uniformly from 0 to the longest duration returned so far, hangs included; the paper
    does not give the law, and the uniform one is this package's choice. So durations depend on the order of the
    dispatches, which is the same for the same run.
    """

    def __init__(self, delays: DelayModel, seed: int, share: float) -> None:
        if not 0 <= share < 1:
            raise ConfigError(f"the probability of a suspension must be in [0, 1), got {share}")
        self.unit = delays.unit
        self._delays = delays
        self._seed = seed
        self._share = share
        self._longest = 0.0

    def duration(self, client: int, number: int) -> float:
        rng = generator(self._seed, "suspension", client, number)
        hangs, part = rng.random() < self._share, rng.random()
        duration = self._delays.duration(client, number) + (part * self._longest if hangs else 0.0)
        self._longest = max(self._longest, duration)
        return duration
