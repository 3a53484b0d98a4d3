"""Objects in place of names: what a program passes where a recipe in TOML says "module:function" or names data.

The config has "given" there, and holds the object. So what is checked, copied and run is a config, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from fastagg import _checks
from fastagg._types import Plain
from fastagg.errors import ConfigError
from fastagg.sim import recipes
from fastagg.sim.clients.own import KEYS, NAMES, Own
from fastagg.sim.data.own import check as check_data
from fastagg.sim.recipes.config import Config, changed, from_dict

Factory = Callable[..., nn.Module]  # called with the shape of an input and the number of classes

# A section that is only a name or a function, by the key that stands for it.
_ALONE = {
    "algorithm": "algorithm.name", "delay": "delay.name", "sampling": "participation.sampling", "model": "model.name",
    "data": "data.name",
}  # fmt: skip
_PLACES = {*_ALONE.values(), *(f"own.{name}" for name in NAMES if name not in KEYS)}


def taken(values: Mapping[str, object]) -> tuple[Plain, Plain]:
    """Return ``values``, nested or by dotted key, with "given" in place of objects, and the objects by their keys.

    A section that is a function is a section with its name: ``{"delay": law}`` is ``{"delay": {"name": law}}``. An
    algorithm that is a name is a section, too. DataError if data cannot be used for training.
    """
    plain: Plain = {}
    held: Plain = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found = {f"{key}.{part}": one for part, one in value.items() if callable(one)}
            found = {place: one for place, one in found.items() if place in _PLACES}
            plain[key] = {part: "given" if f"{key}.{part}" in found else one for part, one in value.items()}
            held |= found
        elif key == "data" and not callable(value):
            held[key] = check_data(value, key)
            plain[key] = {"name": "given", "clients": len(held[key].clients)}
        elif key == "own":
            if not isinstance(value, Own):
                raise ConfigError(f"own: expected fastagg.sim.clients.own.Own(...), got a {type(value).__name__}")
            functions = {KEYS.get(name, f"own.{name}"): getattr(value, name) for name in NAMES}
            found = {place: function for place, function in functions.items() if function is not None}
            held, plain = held | found, plain | dict.fromkeys(found, "given")
        elif key == "model" and (isinstance(value, nn.Module) or not callable(value)):
            wanted = "a function of (shape, classes) that returns the network, such as lambda shape, classes: Net()"
            raise ConfigError(f"model: expected {wanted}, got a {type(value).__name__}")
        elif callable(value) and (place := _ALONE.get(key, key)) in _PLACES:
            held[place] = value
            plain |= {key: {"name": "given"}} if key in _ALONE and key != "sampling" else {place: "given"}
        elif key == "sampling" or (key == "algorithm" and isinstance(value, str)):
            plain |= {_ALONE[key]: value} if key == "sampling" else {key: {"name": value}}
        else:
            plain[key] = value
    return plain, held


def configured(given: Config | str | Plain, changes: Plain | None = None, more: Plain | None = None) -> Config:
    """Return a Config, the recipe of a name or path, or one given as a dict, with ``changes`` to dotted keys, and then
    ``more``, of which None says nothing. All may have objects in place of names.

    ConfigError or DataError if something is wrong.
    """
    if changes is not None and not isinstance(changes, Mapping):
        raise ConfigError(_checks.wrong("changes", "a dict such as {'client.lr': 0.1}", changes))
    own: Plain = {}
    set_here = {key: value for key, value in (more or {}).items() if value is not None}
    change, held = taken({**(changes or {}), **set_here})
    if isinstance(given, str):
        return recipes.load(given, change).holding(held)
    if isinstance(given, Config):
        if not change:
            return given
        values, own = given.model_dump(), given.held
    elif isinstance(given, Mapping):
        values, own = taken(given)
        values = changed({}, dict(sorted(values.items(), key=lambda pair: "." in pair[0])))
    else:
        raise ConfigError(_checks.wrong("config", "a recipe's name, a path, a dict or a Config", given))
    return from_dict(changed(values, change), "the config").holding({**own, **held})
