"""A run's settings: when a run ends before its limit, which model is the best, and how long failing clients pause.

Users write :class:`Stop` and :class:`Best`, and adapters make :class:`Settings`. These classes refuse values that are
out of range. Adapters count failures with :class:`Failures`.
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

_LONGEST = 300.0  # the longest pause of a failing client in seconds, unless its first pause is longer
Goal = TypeVar("Goal")
Mode = Literal["max", "min"]
# If a metric's name has one of these words, smaller values are better, unless the user sets a mode.
LESS = frozenset(("loss", "error", "perplexity", "ppl", "mse", "rmse", "mae", "nll"))


@dataclass(frozen=True)
class Stop:
    """Ends a run before its limit. The run then returns its result as usual.

    At least one of ``target``, ``patience`` and ``seconds`` must be set.

    Args:
        metric: the watched metric. ``accuracy`` is from the server's evaluation, ``train/loss`` from clients' training,
            ``clients/accuracy`` from clients' evaluation.
        target: the run ends when the metric has this value or a better one. None: no target.
        patience: the run ends after this many evaluations in a row without a better value. None: no such end.
        seconds: the run ends after this many seconds, including the time before restarts. None: no such end.
        mode: ``max`` if larger values are better, ``min`` if smaller ones are. None: ``min`` if the metric's name has a
            word such as loss or error, otherwise ``max``.

    Raises:
        ConfigError: a setting is out of range, or target, patience and seconds are all None.
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
    """A file with the best model so far. ``torch.load`` reads the file.

    Args:
        file: the file's path. Each better model replaces the file as a whole.
        metric, mode: as in :class:`Stop`.
    """

    file: str | os.PathLike[str]
    metric: str = "accuracy"
    mode: Mode | None = None

    def __post_init__(self) -> None:
        _checks.path("best", self.file)
        _checks.fields(self)


class Watch:
    """The best value of one metric so far, and the number of values that came after the best one."""

    def __init__(self, metric: str, mode: str | None) -> None:
        words = {word.lower() for word in re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", metric)}
        self.metric, self.sign = metric, 1.0 if (mode or ("min" if LESS & words else "max")) == "max" else -1.0
        self.best: float | None = None
        self.version: int | None = None  # the version that has the best value
        self.since = 0

    def see(self, version: int, metrics: Mapping[str, float]) -> bool:
        """Note the metrics of ``version``. Return whether the watched metric is among them, with its best value so far.

        Raises:
            ConfigError: there are metrics with the watched metric's prefix (such as ``clients/``), but not this metric.
        """
        if self.metric not in metrics:
            kind = self.metric.rpartition("/")[0]
            names = sorted(name for name in metrics if name.rpartition("/")[0] == kind)
            if names:
                raise ConfigError(f"metric: expected one of {names}, got {self.metric!r}")
            return False
        value = metrics[self.metric]
        # A NaN is never the best value. If an older checkpoint has a NaN as the best value, there is no best value yet.
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
    """Return a goal or None unchanged. If ``value`` is a mapping of a goal's settings, return a goal with them."""
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        do = f"write {kind.__name__}(...), or its settings as a dict"
        raise ConfigError(_checks.wrong(name, f"a {kind.__name__} or its settings", value, do))
    return _keywords.made(kind, value)


@dataclass
class Settings:
    """Settings of a run. They are the same in every framework, and a configuration file can hold them as plain data.

    A client fails if no reply comes in time, the client reports an error, or its reply is refused. The client then gets
    no task for ``retry_after`` seconds. The pause doubles with each failure in a row, up to 300 s (``retry_after`` if
    that is longer). After ``max_failures`` failures in a row the client gets no more tasks. RunFailed, which names the
    last failure if there was one, ends the run in three cases: no present client gets tasks any more, ``max_in_a_row``
    failures or too small rounds came in a row, or no update came for ``max_seconds``.

    Args:
        max_failures: after this many failures in a row a client gets no more tasks. None: no limit.
        max_in_a_row: the run ends after this many failures of any clients without an update in between, and after this
            many rounds in a row that were too small for their rule. None: no limit.
        retry_after: seconds of the first pause.
        max_seconds: the run ends after this many seconds without an update. None: no limit.
        stop: a :class:`Stop` or its settings as a dict. None: the run ends at its limit.
        best: a :class:`Best`, its settings as a dict, or only the file's path. With only a path, the metric and mode
            are those of ``stop``, if there is a ``stop``. None: the best model is not saved.
        on_version: called as ``on_version(version, metrics, model)`` when the metrics of a version are known. The model
            is the server's memory, in the form of the first model, and never changes. Do not write to the model.
        trackers: see :mod:`fastagg.trackers`.
        evaluate_every: evaluate each version whose number is a multiple of this.
        evaluate_aside: whether an evaluation runs in a thread while replies are received. If False, replies wait until
            the evaluation has ended.

    If an evaluation or ``on_version`` raises ``StopIteration``, the run ends and returns its result.

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
        if isinstance(self.best, (str, os.PathLike)):  # a path alone: take the metric of `stop`, if there is one
            self.best = Best(self.best, *(self.stop.metric, self.stop.mode) if self.stop else ())
        self.best = _made(Best, "best", self.best)


class Failures:
    """Counts clients' failures, and raises RunFailed after too many. ``clock`` returns seconds."""

    def __init__(self, limits: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._clock, self._since, self._last = limits, clock, clock(), ""
        self._failed: Counter[Hashable] = Counter()  # by client: the number of failures since the client's last update
        self._until = dict[Hashable, float]()  # by client: the clock's time at which the client may get a task again
        self._row: Counter[str] = Counter()  # by cause: the number of failures since the last update of any client

    def failed(self, client: Hashable, cause: str) -> float:
        """Note a failure. Return the number of seconds for which ``client`` gets no task. Infinity: no more tasks.
        Raise RunFailed after ``max_in_a_row`` failures."""
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
        """Raise RunFailed if no present client gets tasks any more, or no update came for ``max_seconds``. ``clients``:
        the present clients."""
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
