"""What a program passes to a run in place of what its recipe says: data, and functions of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim.clients.own import KEYS, NAMES, Own
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.own import check as check_data
from fastagg.sim.recipes import configured, objects
from fastagg.sim.recipes.config import Config, changed

Factory = Callable[..., nn.Module]  # called with the shape of an input and the number of classes


class Passed(NamedTuple):
    """See :func:`fastagg.sim.run`. None: what the recipe says."""

    data: FederatedData | None = None
    model: Factory | None = None
    own: Own | None = None

    def changes(self) -> Plain:
        """Return what a config says instead: they have the name "given" in it.

        DataError if the data cannot be used for training, ConfigError if the model is no function.
        """
        data, model, own = self
        changes: Plain = {}
        if data is not None:
            check_data(data, "data")
            changes["data"] = {"name": "given", "clients": len(data.clients)}
        if model is not None:
            if isinstance(model, nn.Module) or not callable(model):
                wanted = "a function of (shape, classes) that returns the network, such as lambda shape, classes: Net()"
                raise ConfigError(f"model: expected {wanted}, got a {type(model).__name__}")
            changes["model"] = {"name": "given"}
        if own is not None and not isinstance(own, Own):
            raise ConfigError(f"own: expected fastagg.sim.clients.own.Own(...), got a {type(own).__name__}")
        names = [name for name in NAMES if getattr(own, name, None) is not None]
        return changes | {KEYS.get(name, f"own.{name}"): "given" for name in names}


def given(config: Config, passed: Passed) -> Config:
    """Return ``config`` for a run with what a program passes."""
    changes = passed.changes()
    return configured(config, changes) if changes else config


def composed(config: Config | str | Plain, changes: Plain | None, more: Plain, passed: Passed) -> tuple[Config, Passed]:
    """Return the config of a run, and all that a program passes: also the functions in the recipe and its changes."""
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(_checks.wrong("changes", "a dict such as {'client.lr': 0.1}", changes))
    functions: dict[str, Any] = {}
    if isinstance(config, Mapping):
        plain, found = objects.taken(config)
        dotted = {key: value for key, value in plain.items() if "." in key}
        config = changed({key: value for key, value in plain.items() if key not in dotted}, dotted)
        functions |= found
    change, found = objects.taken({**(changes or {}), **more})
    functions |= found
    model = functions.pop("model.name", passed.model)
    make = functions.pop("algorithm.name", None)
    names = {key: name for name in NAMES for key in [KEYS.get(name, f"own.{name}")]}
    if own := {names[key]: function for key, function in functions.items() if key in names}:
        passed = passed._replace(own=replace(passed.own or Own(), **own))
    passed = passed._replace(model=model)
    done = configured(config, change, passed.changes())
    if done.algorithm.name == "given" and make is not None:
        done = done.model_copy(update={"algorithm": done.algorithm.made_by(make)})
    return done, passed
