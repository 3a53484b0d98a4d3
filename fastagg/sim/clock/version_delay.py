"""Delays given in server versions: the update that arrives was trained on x_{t-tau}.

A model has ``longest``, the largest tau that it can return (it tells how many old versions must be kept), and

    tau(client, arrival) -> int            the delay of the ``arrival``-th update (from 0), which ``client``
    sends

Uniform delays are from FedAsync's first tests, and exponential ones from the ACE paper. A file replays measured ones.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

import numpy as np

from fastagg.errors import ConfigError, DataError
from fastagg.sim.seeds import below, generator


class VersionDelay(Protocol):
    longest: int

    def tau(self, client: int, arrival: int) -> int: ...


class UniformVersions:
    """tau drawn uniformly from 0..tau_max, both included."""

    def __init__(self, seed: int, tau_max: int) -> None:
        if tau_max < 0:
            raise ConfigError(f"tau_max must be at least 0, got {tau_max}")
        self._seed = seed
        self.longest = tau_max

    def tau(self, client: int, arrival: int) -> int:
        return below(self.longest + 1, self._seed, "tau", arrival)


class ExponentialVersions:
    """tau is an exponential draw, cut at five times its own mean and rounded up or down at random: mean ``mean``.

    Rounding down only would take half a version off every mean, which is a tenth of a mean of 5. Delays in versions
    give the ACE paper's beta an effect. With exponential *times* and one mean for all clients, another mean would only
    change the unit of time.
    """

    def __init__(self, seed: int, mean: float) -> None:
        if not mean > 0:
            raise ConfigError(f"the mean delay must be above 0, got {mean}")
        self._seed = seed
        self._mean = mean / -math.expm1(-5)  # of the draws before the cut, which removes e^-5 of their mean
        self.longest = math.ceil(5 * self._mean)

    def tau(self, client: int, arrival: int) -> int:
        rng = generator(self._seed, "tau", arrival)
        return math.floor(min(rng.exponential(self._mean), 5 * self._mean) + rng.random())


class ReplayedVersions:
    """Measured delays, one row per arrival. After the last row they start again with the first.

    ``table`` [rows, columns]: one column is shared by all clients; otherwise column c belongs to client c.
    """

    def __init__(self, table: np.ndarray) -> None:
        self._table = table
        self.longest = int(table.max())

    def tau(self, client: int, arrival: int) -> int:
        rows, columns = self._table.shape
        return int(self._table[arrival % rows, client if columns > 1 else 0])


def read_delays(path: Path, clients: int) -> np.ndarray:
    """Read a comma-separated file of delays without a header into an int64 array [rows, 1 or clients].

    DataError if the file is missing or empty, if rows differ in length, if there is neither one column nor one for each
    of the ``clients``, or if a value is not a whole number from 0 up.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the delay file {path}: {error}") from error
    rows = [line.split(",") for line in text.splitlines() if line.strip()]
    if not rows:
        raise DataError(f"the delay file {path} is empty")
    columns = len(rows[0])
    if columns not in (1, clients):
        raise DataError(f"the delay file {path} has {columns} columns, expected 1 or {clients}, one for each client")
    table = np.empty((len(rows), columns), dtype=np.int64)
    for number, row in enumerate(rows, start=1):
        if len(row) != columns:
            raise DataError(f"the delay file {path} has {len(row)} columns in row {number}, expected {columns}")
        for column, cell in enumerate(row):
            table[number - 1, column] = _whole(cell, f"the delay file {path}, row {number}, column {column + 1}")
    return table


def _whole(cell: str, where: str) -> int:
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{where}: expected a delay in versions, got {cell.strip()!r}") from None
    if not (value >= 0 and value == int(min(value, 2.0**53))):
        raise DataError(f"{where}: expected a whole number from 0 up, got {cell.strip()!r}")
    return int(value)
