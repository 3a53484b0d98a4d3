"""Splits a strategy's keyword arguments into the run's settings and Flower's. Strategies call this module, and users
only call :func:`adam_rate`. An argument that is unknown, or would have no effect, raises ConfigError.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from flwr.common.config import APP_DIR, FAB_CONFIG_FILE, get_flwr_home
from flwr.serverapp.strategy import FedAvg

from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.integrations import check_names
from fastagg.integrations.flower.tasks import log
from fastagg.integrations.goals import Settings
from fastagg.integrations.run import FLOWER, LIMITS, AdapterRun, App, Rule, check_limits
from fastagg.rules.optimizers import Adam
from fastagg.server.server import Server

Maker = Callable[..., Server]
Function = TypeVar("Function", bound=Callable[..., object])
_RUN = {field.name for field in dataclasses.fields(Settings)}


def split(
    settings: Plain, ignored: Mapping[str, str], strategy: type[FedAvg], **defaults: object
) -> tuple[Settings, Plain]:
    """Split a strategy's settings into the run's and Flower's.

    Args:
        ignored: the names of settings that raise ConfigError because they would have no effect, with the reasons.
        strategy: the class that got the settings.
        defaults: the strategy's own defaults of the run's settings.
    """
    flower_names = [name for name in inspect.signature(FedAvg).parameters if name not in ignored]
    names = [name for name in _RUN if name not in ignored]
    check_names(settings, [*names, *flower_names, *inspect.signature(strategy).parameters], ignored)
    run = {**defaults, **{name: value for name, value in settings.items() if name in names}}
    flower = {name: value for name, value in settings.items() if name in flower_names}
    check_limits(**{name: value for name, value in flower.items() if name in LIMITS})
    return Settings(**run), flower


def app() -> App:
    """Return the app whose code this process runs, by its folder on Python's path. If there is no such folder, return
    an app without a name, in the current folder."""
    folders = [Path(entry) for entry in sys.path if entry]
    for folder in folders:
        if folder.parent == get_flwr_home() / APP_DIR and (folder / FAB_CONFIG_FILE).is_file():
            project = tomllib.loads((folder / FAB_CONFIG_FILE).read_text(encoding="utf-8"))
            publisher, name = project["tool"]["flwr"]["app"]["publisher"], project["project"]["name"]
            return App("Flower app", f"{publisher}/{name}", folder)
    return App("Flower app", "", Path())


def run_of(
    server: Maker | Server, run: Settings, file: str | os.PathLike[str] | None, every: int = 1, *, rounds: bool
) -> AdapterRun:
    """Return the run of a strategy. ``file``: the checkpoint's path, relative to the app's folder. None: no checkpoint.
    ``every``: versions between checkpoints. ``rounds``: whether the strategy runs rounds."""
    adapter_run = AdapterRun(Rule(FLOWER, server, rounds=rounds), run, file, every, log=log.info, warn=log.warning)
    adapter_run.place(app())
    return adapter_run


def callable_or_none(name: str, function: Function | None) -> Function | None:
    if function is not None and not callable(function):
        raise ConfigError(f"{name}: expected a function, got {function!r}")
    return function


def adam_rate(lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> Callable[[int], float]:
    """Return a function for ``lr=`` of :class:`SyncStrategy` that makes FedAdam's numbers equal to Flower's.

    ``lr`` and ``betas`` (b1, b2) are FedAdam's settings. In round t = 1, 2, ... the function returns
    ``lr * sqrt(1 - b2^(t+1)) / (1 - b1^(t+1))``.
    """
    first, second = betas
    return lambda number: lr * math.sqrt(1 - second ** (number + 1)) / (1 - first ** (number + 1))


def say_what_differs(server: Server, scheduled: bool) -> None:
    """Log one line for each reason why this server and Flower's strategy with equal settings give different numbers.

    Args:
        scheduled: whether the user sets a learning rate for each round.
    """
    roles, weighs = {entry.role for entry in server.layout.entries}, server.weighting == "samples"
    reasons = {
        "weighting='uniform', where Flower weighs clients by their examples": server.weighting == "uniform",
        "its FedAdam multiplies lr by sqrt(1-b2^(t+1))/(1-b1^(t+1)) in round t; give the strategy "
        "lr=flower.adam_rate(lr, betas) for the same": type(server.optimizer) is Adam and not scheduled,
        f"buffers={server.buffers!r}, where Flower weighs running statistics": (
            "buffer" in roles and weighs and server.buffers != "weighted"
        ),
        "integer arrays take the clients' largest, Flower's become floats": "counter" in roles,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        log.info("fastagg: not Flower's numbers: %s", reason)
