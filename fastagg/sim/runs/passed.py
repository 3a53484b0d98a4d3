"""Objects in place of names: what a program passes where a recipe in TOML says "module:function" or names data.

The config has "given" there, and holds the object. So what is checked, copied and run is a config, whoever wrote it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.recipes.config import ARGUMENTS, Config, changed, from_dict

# A section that is only a name or a function, by the key that stands for it.
_ALONE = {
    "algorithm": "algorithm.name", "delay": "delay.name", "sampling": "participation.sampling", "model": "model.name",
    "data": "data.name",
}  # fmt: skip
_PLACES = {*_ALONE.values(), *ARGUMENTS}


def taken(values: Mapping[str, object]) -> tuple[Plain, Plain]:
    """Return ``values``, nested or by dotted key, with "given" in place of objects, and the objects by their keys.

    A section that is a function is a section with its name: ``{"delay": law}`` is ``{"delay": {"name": law}}``. An
    algorithm that is a name is a section, too. DataError if data cannot be used for training.
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
    """Return a Config, the recipe of a name or path, or one given as a dict, with ``changes`` to dotted keys, and then
    ``more``, of which None says nothing. All may have objects in place of names.

    ConfigError or DataError if something is wrong.
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
    # What is passed now takes the place of all that its section had: of a data set, say, the function in its name.
    stays = {key: value for key, value in before.items() if not any(_overlap(key, new) for new in held)}
    return from_dict(changed(values, change), "the config").holding({**stays, **held})


def _overlap(key: str, other: str) -> bool:
    return key.startswith(f"{other}.") or other.startswith(f"{key}.")
