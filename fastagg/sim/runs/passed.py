"""Makes a Config from a recipe in which a program passes objects instead of names.

A program may pass a function instead of "module:function", and a FederatedData instead of the name of a data set. The
Config then has the text "given" instead of a name, and holds the object separately (``Config.held``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.recipes.config import ARGUMENTS, Config, changed, from_dict

# The keys at which a program may pass a single value instead of a section, and the dotted key that this value gets.
_ALONE = {
    "algorithm": "algorithm.name", "delay": "delay.name", "sampling": "participation.sampling", "model": "model.name",
    "data": "data.name",
}  # fmt: skip
_PLACES = {*_ALONE.values(), *ARGUMENTS}


def taken(values: Mapping[str, object]) -> tuple[Plain, Plain]:
    """Return ``values`` with "given" in place of objects, and a dict of the objects by their dotted keys.

    ``values`` is nested, or has dotted keys. A function in place of a section is the section's name: ``{"delay": law}``
    means ``{"delay": {"name": law}}``. A text in place of the section ``algorithm`` is the algorithm's name.
    ConfigError: a single value for ``model`` is not a function. DataError: clients cannot train on passed data.
    """
    plain: Plain = {}
    held: Plain = {}
    for key, value in values.items():
        place = _ALONE.get(key, key)
        if isinstance(value, Mapping):
            functions = {f"{key}.{part}": entry for part, entry in value.items() if callable(entry)}
            functions = {there: function for there, function in functions.items() if there in _PLACES}
            plain[key] = {part: "given" if f"{key}.{part}" in functions else entry for part, entry in value.items()}
            held |= functions
        elif key == "own" and dataclasses.is_dataclass(value):
            functions = {f"own.{name}": function for name, function in vars(value).items() if function is not None}
            held, plain = held | functions, plain | dict.fromkeys(functions, "given")
        elif key == "model" and (not callable(value) or (hasattr(value, "parameters") and not isinstance(value, type))):
            wanted = "a function of (shape, classes) that returns the network, such as lambda shape, classes: Net()"
            raise ConfigError(f"model: expected {wanted}, got a {type(value).__name__}")
        elif callable(value) and place in _PLACES:
            held[place] = value
            plain |= {place: "given"} if key in ("sampling", place) else {key: {"name": "given"}}
        elif key == "data":
            from fastagg.sim.data.own import check

            held[key] = check(value, key)
            plain[key] = {"name": "given", "clients": len(held[key].clients)}
        else:
            named = key == "algorithm" and isinstance(value, str)
            plain |= {place: value} if key == "sampling" else {key: {"name": value} if named else value}
    return plain, held


def configured(recipe: Config | str | Plain, changes: Plain | None = None, more: Plain | None = None) -> Config:
    """Return the Config of a recipe, which is a name, a path, a dict or a Config. ``changes`` and ``more`` map dotted
    keys to new values. ``more`` overrides ``changes``, but a value of None in ``more`` has no effect. A recipe's dict,
    ``changes`` and ``more`` may have objects as values.

    ConfigError or DataError: a value is invalid.
    """
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(_checks.wrong("changes", "a dict such as {'client.lr': 0.1}", changes))
    passed = {key: value for key, value in (more or {}).items() if value is not None}
    change, held = taken({**(changes or {}), **passed})
    if isinstance(recipe, str):
        return recipes.load(recipe, change).holding(held)
    if isinstance(recipe, Config):
        if not change:
            return recipe
        values, before = recipe.model_dump(), recipe.held
    elif isinstance(recipe, Mapping):
        values, before = taken(recipe)
        values = changed({}, dict(sorted(values.items(), key=lambda pair: "." in pair[0])))
    else:
        raise ConfigError(_checks.wrong("config", "a recipe's name, a path, a dict or a Config", recipe))
    # A new object replaces every object at, above or below its key. For example, "data" replaces "data.name".
    stays = {key: value for key, value in before.items() if not any(_overlap(key, new) for new in held)}
    return from_dict(changed(values, change), "the config").holding({**stays, **held})


def _overlap(key: str, other: str) -> bool:
    return key.startswith(f"{other}.") or other.startswith(f"{key}.")
