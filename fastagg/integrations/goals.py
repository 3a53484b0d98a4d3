"""When a run ends before its limit, and which of its models is the best."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fastagg import _checks, _keywords
from fastagg._types import State
from fastagg.errors import ConfigError

Goal = TypeVar("Goal")
# Of a metric with one of these words in its name, less is better.
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
    target: float | None = None
    patience: int | None = None
    seconds: float | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.target is None and self.patience is None and self.seconds is None:
            raise ConfigError("stop: expected a target, patience or seconds, got none of them")
        if self.target is not None:
            _checks.number("target", self.target)
        if self.patience is not None:
            _checks.whole("patience", self.patience, least=1)
        if self.seconds is not None:
            _checks.number("seconds", self.seconds, above=0)
        if self.mode is not None:
            _checks.one_of("mode", self.mode, ("max", "min"))

    @classmethod
    def of(cls, given: object) -> Stop | None:
        """``given``, or one of these from its settings as plain data."""
        return given if given is None or isinstance(given, cls) else _made(cls, "stop", given)


@dataclass(frozen=True)
class Best:
    """A file with the best model so far. Read it with ``torch.load``.

    Args:
        path: the file's path. The file is replaced as a whole.
        metric, mode: as in :class:`Stop`.
    """

    path: str | os.PathLike[str]
    metric: str = "accuracy"
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            _checks.one_of("mode", self.mode, ("max", "min"))
        if not Path(self.path).absolute().parent.is_dir():
            raise ConfigError(f"best: no such folder: {Path(self.path).absolute().parent}")

    @classmethod
    def of(cls, given: object, stop: Stop | None) -> Best | None:
        """``given``, or one of these from a path (with ``stop``'s metric) or settings as plain data."""
        if isinstance(given, (str, os.PathLike)):
            return cls(given) if stop is None else cls(given, stop.metric, stop.mode)
        return given if given is None or isinstance(given, cls) else _made(cls, "best", given)


def of_clients(best: Best | None) -> None:
    """Check the metric of ``best``, where only clients evaluate."""
    if best is not None and "/" not in best.metric:
        raise ConfigError(
            f"best: {best.metric!r} is a metric of an evaluation on the server, and there is none; name a client's, "
            "such as {'path': 'best.pt', 'metric': 'clients/accuracy'}"
        )


class Watch:
    """The best value of one metric so far, and the number of values since then."""

    def __init__(self, metric: str, mode: str | None) -> None:
        self.metric, self.sign = metric, 1.0 if (mode or _mode(metric)) == "max" else -1.0
        self.best: float | None = None
        self.version: int | None = None  # version of the best value
        self.since = 0

    def see(self, version: int, metrics: Mapping[str, float]) -> bool:
        """Take a row. Return whether it is the best so far.

        Raises:
            ConfigError: the row has metrics of this kind, but not this one.
        """
        if self.metric not in metrics:
            kind = self.metric.rpartition("/")[0]
            others = sorted(name for name in metrics if name.rpartition("/")[0] == kind)
            if others:
                raise ConfigError(f"metric: expected one of {others}, got {self.metric!r}")
            return False
        value = metrics[self.metric]
        # A NaN is never the best; one that a checkpoint holds as the best is none.
        first = self.best is None or math.isnan(self.best)
        if not math.isnan(value) and (first or self.sign * value > self.sign * self.best):  # type: ignore[operator]
            self.best, self.version, self.since = value, version, 0
            return True
        self.since += 1
        return False

    def reached(self, target: float) -> bool:
        """Whether the best value reaches the target."""
        return self.best is not None and self.sign * self.best >= self.sign * target

    def state_dict(self) -> State:
        """Plain data."""
        return {"best": self.best, "version": self.version, "since": self.since}

    def load_state_dict(self, state: State) -> None:
        """Inverse of :meth:`state_dict`."""
        self.best, self.version, self.since = state["best"], state["version"], state["since"]


def _mode(metric: str) -> str:
    words = re.findall(r"[A-Z]*[a-z0-9]+|[A-Z]+", metric)
    return "min" if LESS & {word.lower() for word in words} else "max"


def _made(kind: type[Goal], name: str, given: object) -> Goal:
    if not isinstance(given, Mapping):
        do = f"write {kind.__name__}(...), or its settings as a dict"
        raise ConfigError(_checks.wrong(name, f"a {kind.__name__} or its settings", given, do))
    return _keywords.made(kind, given)
