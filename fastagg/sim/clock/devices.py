"""Realistic devices: how fast each client computes and sends, and when it is available.

There are two delay models (see delays.py). ``Trace`` reads measurements. ``Speeds`` draws clients from a law:

    lognormal   exp(spread * z): device speeds as in FedScale's benchmark, and FLGo's "LN"
    zipf        an integer k with probability in proportion to k^-spread: Plato's default
    pareto      1 + a Pareto draw of shape ``spread``: Plato's second

A client's time for a step is this number divided by its mean, times ``mean``. With ``night`` above 0 every client is
away for this part of each ``day``, from its own starting time (like FLGo's sine, as on or off). Its work waits then.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastagg.errors import ConfigError, DataError
from fastagg.sim.clock.delays import Stateless
from fastagg.sim.data.files import read_text
from fastagg.sim.seeds import generator

COLUMNS = ("client", "start", "end", "speed")  # speed: local steps a unit of time, 0 while the client is away
OPTIONAL = ("down", "up")  # bytes a unit of time


class Speeds(Stateless):
    """Clients whose time for a step is drawn once from ``law``, and that may sleep at night."""

    unit = "time unit"

    def __init__(
        self, clients: int, seed: int, mean: float, law: str, spread: float, day: float = 24.0, night: float = 0.0
    ) -> None:
        if not (mean > 0 and spread >= 0 and day > 0 and 0 <= night < 1):
            raise ConfigError(
                "devices need mean and day above 0, spread at least 0 and night in [0, 1), "
                f"got {mean}, {day}, {spread} and {night}"
            )
        draws = _draws(law, spread, clients, generator(seed, "device-speed"))
        self.times: np.ndarray = mean * draws / draws.mean()  # [clients], for a step
        self._day, self._night = day, night
        self._evenings = generator(seed, "device-night").random(clients) * day

    def duration(self, client: int, number: int, steps: int = 1, now: float = 0.0) -> float:
        work = steps * float(self.times[client])
        if not self._night:
            return work
        asleep = self._night * self._day
        # The time since the client's last evening. The night comes first, then the rest of its day.
        since = (now - self._evenings[client]) % self._day
        wait = max(0.0, asleep - since)
        awake = self._day - max(since, asleep)  # until the next evening
        nights = 0 if work <= awake else math.ceil((work - awake) / (self._day - asleep))
        return wait + work + nights * asleep


class Trace(Stateless):
    """When each client is available, and how fast it is, from a file. After its last row a trace starts again.

    Args:
        rows: for each client its (end, speed, down, up), ends rising from 0 on.
        size: bytes of the model, which is sent down before the first step and up after the last.
    """

    unit = "time unit"

    def __init__(self, rows: Sequence[Sequence[tuple[float, float, float, float]]], size: int) -> None:
        self._rows = rows
        self._ends = [[row[0] for row in own] for own in rows]
        self._size = size

    def duration(self, client: int, number: int, steps: int = 1, now: float = 0.0) -> float:
        time = now
        for column, work in ((2, self._size), (1, steps), (3, self._size)):
            time = self._worked(client, time, column, float(work))
        return time - now

    def _worked(self, client: int, time: float, column: int, work: float) -> float:
        """Return when the client finishes ``work`` at the speeds of ``column``, if it begins at ``time``."""
        rows, ends = self._rows[client], self._ends[client]
        period = ends[-1]
        lap, place = divmod(time, period)
        row = bisect_right(ends, place)
        whole = sum((end - begin) * entry[column] for begin, end, entry in zip([0.0, *ends], ends, rows, strict=False))
        if work > 2 * whole:  # whole repetitions of the trace are computed at once
            laps = math.floor(work / whole) - 1
            lap, work = lap + laps, work - laps * whole
        while True:
            row, lap, place = (row, lap, place) if row < len(rows) else (0, lap + 1, 0.0)
            speed, left = rows[row][column], ends[row] - place
            if math.isinf(speed) or (speed > 0 and speed * left >= work):
                return lap * period + place + (0.0 if math.isinf(speed) else work / speed)
            work -= speed * left
            place = ends[row]
            row += 1


def read_trace(path: Path, clients: int) -> list[list[tuple[float, float, float, float]]]:
    """Read a CSV file with the header client,start,end,speed[,down,up]; a client's rows follow each other in time.

    DataError, with file and row, if a value is missing or not a number, a time is negative, a client's rows leave a gap
    or overlap, a client is never available, or a client of 0 to ``clients`` - 1 is missing.
    """
    lines = list(csv.reader(io.StringIO(read_text(path))))
    header = [name.strip() for name in lines[0]] if lines else []
    if tuple(header) not in (COLUMNS, (*COLUMNS, *OPTIONAL)):
        raise DataError(f"the trace {path} has the columns {','.join(header)}, expected {','.join(COLUMNS)}[,down,up]")
    rows: list[list[tuple[float, float, float, float]]] = [[] for _ in range(clients)]
    for number, line in enumerate(lines[1:], start=2):
        where = f"the trace {path}, line {number}"
        if not line:
            continue
        if len(line) != len(header):
            raise DataError(f"{where}: {len(line)} columns, expected {len(header)}")
        client, start, end, speed, *both = (_number(cell, where) for cell in line)
        if client != int(client) or client >= clients:
            raise DataError(f"{where}: client {line[0]} is none of 0..{clients - 1}")
        own = rows[int(client)]
        before = own[-1][0] if own else 0.0
        if start != before:
            what = "leaves a gap" if start > before else "goes back"
            raise DataError(f"{where}: client {int(client)} {what} from {before:g} to {start:g} (away is speed 0)")
        if not end > start:
            raise DataError(f"{where}: the end, {end:g}, is not after the start, {start:g}")
        # While a client is away it sends nothing either.
        down, up = (float(rate) if speed else 0.0 for rate in (both or (math.inf, math.inf)))
        own.append((end, speed, down, up))
    for client_number, own in enumerate(rows):
        for column, name in ((1, "there"), (2, "able to receive"), (3, "able to send")):
            if not any(row[column] > 0 for row in own):
                raise DataError(f"the trace {path}: client {client_number} is never {name}")
    return rows


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise DataError(f"{where}: expected a number, got {cell.strip()!r}") from None
    if not (value >= 0 and math.isfinite(value)):
        raise DataError(f"{where}: expected a number from 0 up, got {cell.strip()!r}")
    return value


def _draws(law: str, spread: float, clients: int, rng: np.random.Generator) -> np.ndarray:
    if law == "lognormal":
        return np.exp(spread * rng.standard_normal(clients))
    if law == "zipf" and spread > 1:
        return rng.zipf(spread, clients).astype(np.float64)
    if law == "pareto" and spread > 0:
        return 1.0 + rng.pareto(spread, clients)
    raise ConfigError(
        f"device law {law!r} with spread {spread} is unknown: lognormal, zipf (above 1), pareto (above 0)"
    )
