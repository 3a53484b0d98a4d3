"""The simulator: clients, delays and local training around a ``fastagg.Server``. One seed determines all random draws.

    result = fastagg.sim.run("fadas-digits-large", {"algorithm.lr": 0.01}, out="runs/mine")
    result = fastagg.sim.run(config, data=FederatedData(...), model=lambda shape, classes: MyNet(classes))
    found = fastagg.sim.compare("fadas-digits-large", rules={"FADAS": "FADAS", "mine": my_rule}, seeds=5)

Folders:

    recipes/      runs and tables of runs as TOML files   data/      the clients' samples
    clock/        delays and schedules in virtual time    models/    small networks
    clients/      local training, the user's functions    runs/      the parts, the loop and the folder of a run
    comparison/   comparisons of runs, with tests         show/      progress, tables, pictures and reports

The server and its rules do not import this package. Importing this package imports neither torch nor scikit-learn.
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
    """Run a simulation to its end and return its result.

    Where a recipe names a function as "module:function", a program may pass the function itself. ``algorithm=`` is a
    function of a model that returns a server, such as ``functools.partial(fastagg.FADAS, lr=0.01)``. ``delay=`` is a
    function of (client, number of the client's task, local steps, NumPy generator) that returns the task's virtual
    time. ``sampling=`` is a function of (idle clients, virtual time, generator) that returns the client that gets the
    next model. ``delay`` and ``sampling`` must not keep a state, because a resumed run would not have this state. Each
    of the two may have an argument ``view``, for the clients' history (:class:`~fastagg.sim.clock.view.View`).

    Args:
        config: a Config, a recipe's name or path, or a recipe as a dict.
        changes: new values by dotted key ("client.lr"). None: no changes.
        data: the clients' data, in place of the config's ``data``. To resume a run, pass the same data again.
        model: a function of the data's (shape, classes) that returns the network, in place of the config's ``model``.
        out: the run's folder. None: no file is written.
        **settings: new values of keys at a recipe's first level, such as ``seed=3``. Also arguments of
            :func:`fastagg.sim.runs.run.run`, such as ``replace=True``, which deletes an earlier run in ``out``.

    Raises:
        ConfigError, DataError: an input is not as documented. If the error shows only in training, such as a wrong
            result of your own function, the run's first files have been written.

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
    """Divide ``settings`` into two dicts: values of a recipe's keys, and arguments of ``function``. The first dict also
    gets ``passed``. Keys with the value None are left out of the first dict."""
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
    """Run every recipe with every rule, setting and seed, and compare the runs. ``fastagg compare`` does the same.

    A finished run in ``out`` with the same settings is not run again, unless its data or the user's code has changed.

    Args:
        recipes: one recipe, or several. Each is the name or path of a recipe or a table, a Config, or a dict.
        changes: new values by dotted key, for all runs. A value may be a function, as in :func:`run`.
        rules: replacements of the recipes' algorithm, by label. Each is a preset's name, a function that makes a
            server, or a dict of sections, such as ``{"algorithm": {"name": "ACE", "lr": 0.1}}``. None: no replacement.
        grid: a list of values for each dotted key. Every combination of values is a setting. None: one setting.
        seeds: a list of seeds, or a number of seeds. A number n means n consecutive seeds, from the recipe's seed up.
        out: the folder of all runs, tables and pictures.
        data, model: as in :func:`run`, for all runs.
        **settings: new values of keys at a recipe's first level, such as ``delay``. Also arguments of
            :func:`fastagg.sim.comparison.compare.compare`, such as ``jobs=2``, ``baseline="FedAvg"``, ``target=0.9``.

    Returns:
        A :class:`fastagg.sim.comparison.compare.Comparison`: ``results``, ``to_latex()``, ``figure()``.

    Raises:
        ConfigError, DataError: an input is not as documented. The settings of all unfinished runs are checked before
            the first run starts. A later error of one run does not end the others, and is in the result's ``failed``.

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
