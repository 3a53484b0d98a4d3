"""The simulator: clients, delays and local training around a ``fastagg.Server``. One seed determines all of it.

    result = fastagg.sim.run("fadas-digits-large", {"algorithm.lr": 0.01}, out="runs/mine")
    result = fastagg.sim.run(config, data=FederatedData(...), model=lambda shape, classes: MyNet(classes))
    found = fastagg.sim.compare("fadas-digits-large", rules={"FADAS": "FADAS", "mine": my_rule}, seeds=5)

Rooms:

    recipes/      a run, or a table of runs, as TOML      data/      who holds which samples
    clock/        who trains when, in virtual time        models/    small networks
    clients/      local training, functions of your own   runs/      a run: its parts, its loop, its folder
    comparison/   comparisons, tests                      show/      progress, tables, pictures, pages

Nothing below ``fastagg.sim`` (server, ops) imports it. Importing this package imports neither torch nor
scikit-learn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from fastagg._types import Plain
    from fastagg.sim.comparison.cells import Rule
    from fastagg.sim.comparison.compare import Comparison
    from fastagg.sim.data.federated import FederatedData
    from fastagg.sim.recipes.config import Config
    from fastagg.sim.runs.result import Result

from fastagg import _checks, _extras
from fastagg.sim.functions import parameters

_extras.require("the simulator", "sim", _extras.SIM)

__all__ = ["compare", "run"]

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

    Where a recipe has the name "module:function", a dict, a change or a setting may have the function itself:
    ``algorithm=`` (a function of a model that returns a server, such as ``functools.partial(fastagg.FADAS, lr=0.01)``),
    ``delay=``, a function of (client, number of its task, local steps, NumPy generator) that returns the task's virtual
    time, and ``sampling=``, a function of (idle clients, virtual time, generator) that returns the client that gets the
    model next. Both remember nothing themselves: with an argument ``view`` they get what is known of the clock, the
    versions and the clients' history, a :class:`~fastagg.sim.clock.view.View`, so that a resumed run is the same run.

    Args:
        config: a Config, a recipe's name or path, or a recipe as a dict.
        changes: changed values by dotted key ("client.lr").
        data: the federation. It replaces the config's ``data``, as all that is passed does: pass it again to resume.
        model: called with (shape, classes) of the data, returns the network. It replaces the config's ``model``.
        out: the run's folder. None writes nothing.
        **settings: further ``changes`` of keys at a recipe's first level, such as ``seed=3``, and the settings of
            :func:`fastagg.sim.runs.run.run`, such as ``replace=True``, which deletes the run that is in ``out``.

    Raises:
        ConfigError, DataError: an input is not as documented. Nothing has been written.

    Example:
        >>> from fastagg.sim import run
        >>> result = run("fedbuff-digits-large", {"run.uploads": 50, "data.clients": 30})
        >>> result.summary["uploads"], len(result.rows) > 1
        (50, True)
    """
    from fastagg.sim.runs import run as runs
    from fastagg.sim.runs.passed import configured

    keys, rest = _split(settings, runs.run, data=data, model=model)
    return runs.run(configured(config, changes, keys), None if out is None else _checks.path("out", out), **rest)


def _split(settings: Plain, function: Callable[..., object], **passed: Any) -> tuple[Plain, Plain]:
    """Return a recipe's first-level keys, which are all ``settings`` but those of ``function`` and what was passed; and
    the others."""
    known = parameters(function)
    keys = {**{key: value for key, value in settings.items() if key not in known}, **passed}
    keys = {key: value for key, value in keys.items() if value is not None}
    return keys, {key: value for key, value in settings.items() if key in known}


def compare(
    recipes: str | Config | Plain | Sequence[str | Config | Plain],
    changes: Plain | None = None,
    *,
    rules: Mapping[str, Rule] | None = None,
    grid: Mapping[str, Sequence[object]] | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path = "runs/compare",
    data: FederatedData | None = None,
    model: Callable[..., nn.Module] | None = None,
    **settings: Any,
) -> Comparison:
    """Run every recipe with every rule, setting and seed, and compare them. ``fastagg compare`` does the same.

    What ran in ``out`` already is not run again, unless data or code changed.

    Args:
        recipes: recipes and tables by name or path, Configs, or recipes as dicts; one, or several.
        changes: changed values by dotted key, of all runs. Functions may take the place of names, as in :func:`run`.
        rules: by label, what replaces the recipes' algorithm: a preset's name, a function that makes a server, or the
            keys that a table's row has (``{"algorithm": {"name": "ACE", "lr": 0.1}, "client": {"steps": 1}}``).
        grid: keys and the values of each; every combination is a setting.
        seeds: how many, from the recipe's own up, or which.
        out: the folder of all runs, tables and pictures.
        data, model: as in :func:`run`, of all runs.
        **settings: ``algorithm``, ``delay``, ``sampling``, ``own`` and the recipe's other first-level keys; those of
            :func:`fastagg.sim.comparison.compare.compare`, such as ``jobs=2``, ``baseline="FedAvg"``, ``target=0.9``.

    Returns:
        A :class:`fastagg.sim.comparison.compare.Comparison`: ``results``, ``to_latex()``, ``figure()``.

    Raises:
        ConfigError, DataError: an input is not as documented; all runs are checked before the first one starts.

    Example:
        >>> from fastagg.sim import compare
        >>> short, rules = {"run.uploads": 40, "data.clients": 30}, {"FedBuff": "FedBuff", "FedAsync": "FedAsync"}
        >>> found = compare("fedbuff-digits-large", short, rules=rules, seeds=2, out="both")
        >>> [group.label for group in found.groups], len(found.results)
        (['FedBuff', 'FedAsync'], 4)
    """
    from fastagg.bars import CellsBar
    from fastagg.sim.comparison.cells import cells
    from fastagg.sim.comparison.compare import compare as run_all

    several: list[Any] = list(recipes) if isinstance(recipes, list | tuple) else [recipes]
    keys, rest = _split(settings, run_all, data=data, model=model)
    members = cells(several, changes, grid or {}, seeds, more=keys, rules=rules)
    with CellsBar() as bar:
        return run_all(members, _checks.path("out", out), bar, **rest)
