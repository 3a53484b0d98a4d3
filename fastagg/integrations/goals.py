"""A run's settings: when the run ends before its limit, which model is the best, and how long failing clients pause.

Users write :class:`Stop` and :class:`Best`. Adapters build :class:`Settings`. All three refuse values out of range.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fastagg import _checks, _keywords
from fastagg._checks import Count, NotNegative, Number, Positive
from fastagg._types import Arrays, State
from fastagg.errors import ConfigError, RunFailed
from fastagg.trackers import AnyTrackers

_LONGEST = 300.0  # the longest pause of a client that keeps failing, in seconds
Goal = TypeVar("Goal")
Mode = Literal["max", "min"]
# If a metric's name has one of these words, smaller values are better.
LESS = frozenset(("loss", "error", "perplexity", "ppl", "mse", "rmse", "mae", "nll"))


@dataclass(frozen=True)
class Stop:
    """When to end a run, with its result.

    Args:
        metric: the watched metric. ``accuracy`` is from the server's evaluation, ``train/loss`` from clients' training,
            ``clients/accuracy`` from clients' evaluation.
        target: end when the metric reaches this value.
        patience: end after this many evaluations without a better value.
        seconds: end after this many seconds.
        mode: whether ``max`` or ``min`` is better. The default depends on the metric's name.

    Raises:
        ConfigError: a setting is out of range.
    """

    metric: str = "accuracy"
    target: Number | None = None
    patience: Count | None = None
    seconds: Positive | None = None
    mode: Mode | None = None

    def __post_init__(self) -> None:
        if self.target is None and self.patience is None and self.seconds is None:
            raise ConfigError("stop: expected a target, patience or seconds, got none of them")
        _checks.fields(self)


@dataclass(frozen=True)
class Best:
    """A file with the best model so far. Read it with ``torch.load``.

    Args:
        file: the file's path. The file is replaced as a whole.
        metric, mode: as in :class:`Stop`.
    """

    file: str | os.PathLike[str]
    metric: str = "accuracy"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        _checks.path("best", self.file)
        _checks.fields(self)


class Watch:
    """The best value of one metric so far, and the number of values since then."""

    def __init__(self, metric: str, mode: str | None) -> None:
        words = {word.lower() for word in re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", metric)}
        self.metric, self.sign = metric, 1.0 if (mode or ("min" if LESS & words else "max")) == "max" else -1.0
        self.best: float | None = None
        self.version: int | None = None  # version of the best value
        self.since = 0

    def see(self, version: int, metrics: Mapping[str, float]) -> bool:
        """Look at a row of metrics. Return whether its value is the best so far.

        Raises:
            ConfigError: the row has metrics of the same kind (``clients/...``), but not the watched metric.
        """
        if self.metric not in metrics:
            kind = self.metric.rpartition("/")[0]
            names = sorted(name for name in metrics if name.rpartition("/")[0] == kind)
            if names:
                raise ConfigError(f"metric: expected one of {names}, got {self.metric!r}")
            return False
        value = metrics[self.metric]
        # A NaN is never the best value. If an older checkpoint has a NaN as the best value, there is none yet.
        first = self.best is None or math.isnan(self.best)
        if not math.isnan(value) and (first or self.sign * value > self.sign * self.best):  # type: ignore[operator]
            self.best, self.version, self.since = value, version, 0
            return True
        self.since += 1
        return False

    def reached(self, target: float) -> bool:
        return self.best is not None and self.sign * self.best >= self.sign * target

    def state_dict(self) -> State:
        return {"best": self.best, "version": self.version, "since": self.since}

    def load_state_dict(self, state: State) -> None:
        self.best, self.version, self.since = state["best"], state["version"], state["since"]


def _made(kind: type[Goal], name: str, value: object) -> Goal | None:
    """Return ``value`` if it is a goal or None. If it is a goal's settings as plain data, make the goal."""
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        do = f"write {kind.__name__}(...), or its settings as a dict"
        raise ConfigError(_checks.wrong(name, f"a {kind.__name__} or its settings", value, do))
    return _keywords.made(kind, value)


@dataclass
class Settings:
    """Settings of a run, the same in every framework. A configuration file can hold them as plain data.

    A client that fails gets no task for ``retry_after`` seconds. The pause doubles with each failure in a row, up to
    300 s. After ``max_failures`` in a row the client gets no task any more. The run ends with
    :class:`fastagg.RunFailed`, which holds the last cause, when all present clients are excluded in this way, after
    ``max_in_a_row`` failures of any clients without an update in between, or after ``max_seconds`` without an update.

    Args:
        max_failures: the most failures in a row of one client. None: no limit.
        max_in_a_row: the most failures in a row of all clients, and the most rounds in a row that are too small for
            their rule. None: no limit.
        retry_after: seconds of the first pause.
        max_seconds: the most seconds without an update. None: no limit.
        stop: a :class:`Stop`, or its settings: when to end the run before its limit.
        best: a file for the best model, or a :class:`Best`.
        on_version: called as ``on_version(version, metrics, model)`` when the metrics of a version are known. The model
            is the server's own, in the form of ``params``, and never changes. Do not write to it.
        trackers: see :mod:`fastagg.trackers`.
        evaluate_every: versions between two evaluations.
        evaluate_aside: evaluate in a thread while replies are received. Otherwise the run waits for each evaluation.

    ``StopIteration`` from an evaluation or from ``on_version`` ends the run with its result.

    Raises:
        ConfigError: a setting is refused.
    """

    max_failures: Count | None = 5
    max_in_a_row: Count | None = 50
    retry_after: NotNegative = 5.0
    max_seconds: Positive | None = None
    stop: Any = None
    best: Any = None
    on_version: Callable[[int, dict[str, float], Arrays], object] | None = None
    trackers: AnyTrackers = None
    evaluate_every: Count = 1
    evaluate_aside: bool = True

    def __post_init__(self) -> None:
        _checks.fields(self)
        self.stop = _made(Stop, "stop", self.stop)
        if isinstance(self.best, (str, os.PathLike)):  # the metric of `stop`, if there is one
            self.best = Best(self.best, *(self.stop.metric, self.stop.mode) if self.stop else ())
        self.best = _made(Best, "best", self.best)


class Failures:
    """Counts failures by client, and ends the run after too many. ``clock`` returns seconds."""

    def __init__(self, limits: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock, self._since, self._last = limits, clock, clock(), ""
        self._failed: Counter[Hashable] = Counter()  # each client's failures since its last update
        self._until = dict[Hashable, float]()  # when each client may get a task again
        self._row: Counter[str] = Counter()  # causes of failures since the last update of any client

    def failed(self, client: Hashable, cause: str) -> float:
        """Note a failure. Return for how many seconds ``client`` gets no task. Infinity: it gets none any more."""
        self._failed[client] += 1
        self._row[cause] += 1
        self._last = f"client {client}: {cause}"
        limits = self.limits
        wait = min(limits.retry_after * 2.0 ** min(self._failed[client] - 1, 30), max(_LONGEST, limits.retry_after))
        if limits.max_failures is not None and self._failed[client] >= limits.max_failures:
            wait = math.inf
        self._until[client] = self._clock() + wait
        if limits.max_in_a_row is not None and self._row.total() >= limits.max_in_a_row:
            self._end(f"{self._row.total()} failures in a row, and no update between them")
        return wait

    def taken(self, client: Hashable) -> None:
        self._failed.pop(client, None)
        self._until.pop(client, None)
        self._row.clear()
        self._since = self._clock()

    def rests(self, client: Hashable) -> bool:
        return self._until.get(client, -math.inf) > self._clock()

    def is_out(self, client: Hashable) -> bool:
        return self._until.get(client) == math.inf

    def check(self, clients: Iterable[Hashable]) -> None:
        """Raise RunFailed if the run cannot continue. ``clients``: the clients that are present."""
        present = list(clients)
        if present and all(self.is_out(client) for client in present):
            often = self.limits.max_failures
            self._end(f"each of the {len(present)} clients that are there failed {often} times in a row")
        seconds = self.limits.max_seconds
        if seconds is not None and self._clock() - self._since > seconds:
            presence = f"{len(present)} clients are there" if present else "no client is there"
            self._end(f"no update was taken in {seconds:g} s; {presence}")

    def _end(self, reason: str) -> None:
        often = self._row.most_common(1)
        commonest = f"; {often[0][1]} of them: {often[0][0]}" if often and len(self._row) > 1 else ""
        raise RunFailed(f"{reason}{commonest}; the last: {self._last}" if self._last else reason)
