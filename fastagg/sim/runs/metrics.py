"""The numbers that a run records: rows of evaluations, statistics of delays, and the numbers of summary.json."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fastagg._types import Plain

LAST = 5  # a run's accuracy is the mean over this number of last versions, as in FADAS' Table 2
# A run's wall-clock time is divided among activities. "setup": loading and building. "server": dispatch and receive.
ACTIVITIES = ("training", "server", "evaluation", "setup")


def unit_text(unit: str) -> str:
    """Return a delay law's unit of virtual time in words: "updates", "units of 10 s"."""
    return f"units of {unit}" if unit[0].isdigit() else f"{unit}s"


def seconds(unit: str) -> int:
    """Return the seconds in a unit of virtual time such as "10 s". 0: the unit is not in seconds."""
    number, _, name = unit.partition(" ")
    return int(number) if name == "s" and number.isdigit() else 0


def duration(value: float, unit: str) -> str:
    """Return a virtual time in words: "6 h 8 min" if the unit is in seconds, otherwise "54.0 updates"."""
    if not (known := seconds(unit)):
        return f"{value:,.1f} {unit_text(unit)}"
    total = value * known
    for name, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "", 60)):
        whole, rest = divmod(round(total / part), size // part)
        if whole and total >= 59.5:
            return f"{whole} {name}" + (f" {rest} {below}" if rest and whole < 10 else "")
    return f"{total:.0f} s"


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation: a line of metrics.csv.

    time: the virtual time, in the delay law's unit. accuracy: 0..1 on the test set. loss: the mean cross-entropy on the
    test set. A metric or loss of the user replaces the two. delay_mean, delay_max: the mean and the largest delay, in
    versions, of the updates since the row before. Without updates both are 0. bytes_up: the bytes of all updates so
    far, as they were sent. bytes_down: the bytes of the models from which these updates were trained. client_mean,
    client_worst, client_spread: the results of :func:`spread` for clients' accuracies. None: clients are not tested.
    """

    version: int
    time: float
    uploads: int
    accuracy: float
    loss: float
    delay_mean: float
    delay_max: int
    bytes_up: int = 0
    bytes_down: int = 0
    client_mean: float | None = None
    client_worst: float | None = None
    client_spread: float | None = None


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return three numbers about the clients' accuracies ``values``: the mean, the mean of the lowest tenth (at least
    one client), and the population deviation."""
    worst = sorted(values, key=lambda value: (value == value, value))[: max(1, len(values) // 10)]  # NaN is the worst
    return statistics.fmean(values), statistics.fmean(worst), deviation(values)


def deviation(values: Sequence[float]) -> float:
    """Return the population deviation of ``values``. If a value is not finite, return NaN instead of raising."""
    return statistics.pstdev(values) if all(map(math.isfinite, values)) else math.nan


@dataclass(frozen=True)
class ClientRow:
    """A line of clients.csv: a client's number of training samples, number of received updates, and last accuracy on
    the client's own test samples. An accuracy of None: the client was not tested."""

    client: int
    samples: int
    uploads: int
    accuracy: float | None


@dataclass(frozen=True)
class DelayRow:
    """A line of delays.csv: a delay in server versions, and the number of updates with this delay."""

    delay: int
    uploads: int


class DelayStatistics(Counter[int]):
    """The number of updates with each delay. Memory grows with the number of different delays, not of updates."""

    @property
    def mean(self) -> float:
        return sum(d * n for d, n in self.items()) / self.total() if self else 0.0

    @property
    def median(self) -> float:
        return float(statistics.median(self.elements())) if self else 0.0

    @property
    def maximum(self) -> int:
        return max(self, default=0)


def reaching(rows: Sequence[EvaluationRow], target: float, every: int = 1) -> EvaluationRow | None:
    """Return the first evaluation with at least the accuracy ``target``. None: there is no such evaluation. Only the
    last evaluation up to each multiple of ``every`` updates counts, so that runs with more tests have no advantage."""
    last = {-(-row.uploads // every): row for row in rows}
    return next((row for row in last.values() if row.accuracy >= target), None)


def summarise(rows: Sequence[EvaluationRow], target: float, stopped: str = "finished", every: int = 1) -> Plain:
    """Return the entries of summary.json that come from the rows of one run, which has at least one row. ``every``: as
    in :func:`reaching`.

    A diverged run has no model at its end, so it has no final accuracy. The untrained first model does not count as a
    version. The deviation is over the last versions of one run, as in FADAS' Table 2.
    """
    end, reached, alive = rows[-1], reaching(rows, target, every), stopped != "diverged"
    # A dict by version: if updates came after the last version, that version was tested twice.
    last = {row.version: row.accuracy for row in rows if alive and row.version > max(0, end.version - LAST)}
    return {
        "versions": end.version,
        "uploads": end.uploads,
        "virtual_time": end.time,
        "bytes_up": end.bytes_up,
        "bytes_down": end.bytes_down,
        "client_mean": end.client_mean,
        "client_worst": end.client_worst,
        "client_spread": end.client_spread,
        "final_accuracy": end.accuracy if alive else None,
        "final_loss": end.loss if alive else None,
        "best_accuracy": max((row.accuracy for row in rows if row.accuracy == row.accuracy), default=math.nan),
        "last5_accuracy_mean": statistics.fmean(last.values()) if last else None,
        "last5_accuracy_std": deviation(list(last.values())) if last else None,
        "last5_versions": len(last),  # how many of the last five versions were tested
        "target_accuracy": target,
        "time_to_target": None if reached is None else reached.time,
        "uploads_to_target": None if reached is None else reached.uploads,
    }
