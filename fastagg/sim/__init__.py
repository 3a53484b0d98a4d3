"""The simulator: clients, delays and local training around a ``fastagg.Server``. One seed determines all of it.

    result = fastagg.sim.run("fadas-digits-large", {"algorithm.lr": 0.01}, out="runs/mine")
    result = fastagg.sim.run(config, data=FederatedData(...), model=lambda shape, classes: MyNet(classes))

Rooms:

    recipes/   a run, or a table of runs, as TOML      data/      who holds which samples
    clock/     who trains when, in virtual time        models/    small networks
    clients/   local training, functions of your own   engines/   where clients train
    one/       one run: its parts, its loop, its folder
    many/      comparisons, claims                     show/      progress, tables, pictures, pages

Nothing below ``fastagg.sim`` (server, ops) imports it. Importing this package imports neither torch nor
scikit-learn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from fastagg._types import Plain
    from fastagg.sim.data.federated import FederatedData
    from fastagg.sim.one.result import Result
    from fastagg.sim.recipes.config import Config

from fastagg import _checks, _extras

_extras.require("the simulator", "sim", _extras.SIM)

__all__ = ["run"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise _checks.no_attribute(sys.modules[__name__], name)


def run(
    config: Config | str | Plain,
    changes: Plain | None = None,
    *,
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Run a simulation to its end and return its rows and summary.

    Args:
        config: a Config, a recipe's name or path, or a recipe as a dict.
        changes: changed values by dotted key ("client.lr").
        data: the federation. It replaces the config's ``data``.
        model: called with (shape, classes) of the data, returns the network. It replaces the config's ``model``.
        out: the run's folder. None writes nothing.
        **settings: further ``changes`` of keys at a recipe's first level, such as ``seed=3``, and the settings of
            :func:`fastagg.sim.one.run.run`, such as ``replace=True``, which deletes the run that is in ``out``.

    Raises:
        ConfigError, DataError: an input is not as documented. Nothing has been written.

    Example:
        >>> from fastagg.sim import run
        >>> result = run("fedbuff-digits-large", {"run.uploads": 50, "data.clients": 30})
        >>> result.summary["uploads"], len(result.rows) > 1
        (50, True)
    """
    from fastagg import _checks
    from fastagg.errors import WrongArguments
    from fastagg.sim.one import run as runs
    from fastagg.sim.recipes import configured
    from fastagg.sim.recipes.config import ELSEWHERE, Config, full_keys

    more = {key: settings.pop(key) for key in Config.model_fields.keys() & settings.keys() - {"own"}}
    for key, value in settings.items():
        if key in ELSEWHERE:
            raise WrongArguments(f"run: unknown setting {key!r}; {ELSEWHERE[key]}")
        if keys := full_keys(key):
            line = f"fastagg.sim.run(config, {{{keys[0]!r}: {value!r}}})"
            others = f", or another of this name: {', '.join(keys[1:4])}" if keys[1:] else ""
            raise WrongArguments(f"run: unknown setting {key!r}; a recipe's keys are changed so: {line}{others}")

    more |= runs.passed(data, model, settings.get("own"))
    return runs.run(
        configured(config, {} if changes is None else changes, more),
        None if out is None else _checks.path("out", out),
        data=data,
        model=model,
        **settings,
    )
