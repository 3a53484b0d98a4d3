"""Keyword arguments of a strategy, sorted: a run's, Flower's own, and those that it would ignore, which raise."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp.strategy import FedAvg

from fastagg import _checks
from fastagg.errors import ConfigError
from fastagg.integrations.flower.tasks import log
from fastagg.integrations.session import Settings
from fastagg.parts.optimizers import Adam
from fastagg.serving.server import Server

_RUN = {field.name for field in dataclasses.fields(Settings)}


def split(
    given: dict[str, Any], ignored: Mapping[str, str], flower: type = FedAvg, **defaults: Any
) -> tuple[Settings, dict[str, Any]]:
    """A run's settings and Flower's, out of what a strategy was given.

    Args:
        ignored: settings that it has no use for, and why.
        flower: the class of Flower's that takes the others.
        defaults: of the run's settings.

    Raises:
        ConfigError: one would be ignored, is unknown, or is refused.
    """
    for name in given:
        if name in ignored:
            raise ConfigError(f"{name}: {ignored[name]}")
    known = [name for name in inspect.signature(flower).parameters if name not in ignored]
    own = [name for name in _RUN if name not in ignored]
    for name in given:
        if name not in own and name not in known:
            raise ConfigError(_checks.unknown("setting", name, [*own, *known]))
    run = {**defaults, **{name: value for name, value in given.items() if name in own}}
    return Settings(**run), {name: value for name, value in given.items() if name in known}


def callable_or_none(name: str, given: Any) -> Any:
    """``given``.

    Raises:
        ConfigError: it is neither a function nor None.
    """
    if given is not None and not callable(given):
        raise ConfigError(f"{name}: expected a function, got {given!r}")
    return given


def adam_rate(lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> Callable[[int], float]:
    """The learning rate of Flower's FedAdam by round, t = 1, 2, ...: ``lr * sqrt(1 - b2^(t+1)) / (1 - b1^(t+1))``.

    With it as ``lr=``, FedAdam gives Flower's numbers.
    """
    first, second = betas
    return lambda number: lr * math.sqrt(1 - second ** (number + 1)) / (1 - first ** (number + 1))


def set_rate(server: Server, rate: Callable[[int], float] | None, number: int) -> None:
    """Give the server's optimizer its learning rate of round ``number``, if there is a schedule.

    Raises:
        ConfigError: it is no learning rate.
    """
    lr = server.optimizer.lr if rate is None else rate(number)
    if lr != server.optimizer.lr:
        server.lr = lr


def say_what_differs(server: Server, scheduled: bool) -> None:
    """One line for each reason for which equal settings do not give the numbers of Flower's own strategy.

    Args:
        scheduled: whether the user has a learning rate by round.
    """
    if server.weighting == "uniform":
        log.info("fastagg: not Flower's numbers: weighting='uniform', where Flower weighs clients by their examples")
    if type(server.optimizer) is Adam and not scheduled:
        log.info(
            "fastagg: not Flower's numbers: its FedAdam multiplies lr by sqrt(1-b2^(t+1))/(1-b1^(t+1)) in round t; "
            "give the strategy lr=flower.adam_rate(lr, betas) for the same"
        )
    roles = {entry.role for entry in server.layout.entries}
    if "buffer" in roles and server.weighting == "samples":
        log.info("fastagg: not Flower's numbers: running statistics take the clients' plain mean, Flower weighs it")
    if "counter" in roles:
        log.info("fastagg: not Flower's numbers: integer arrays take the clients' largest, Flower's become floats")
