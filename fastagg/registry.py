"""The registry of presets, of the package's parts and of users' own parts, by name.

Parts are directions, optimizers and staleness policies. A checkpoint contains a part's name and settings, so a program
that reads the checkpoint must have registered the part. :mod:`fastagg.rules` and :mod:`fastagg.presets` register the
package's own parts and presets. :func:`register` registers a user's part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from fastagg import _checks, _keywords
from fastagg._types import Plain
from fastagg.errors import ConfigError, MissingPart

P = ParamSpec("P")
R = TypeVar("R")


class RulePart:
    """Base class of all parts of a server. It checks the fields that have a SettingRule (fastagg/_checks.py)."""

    def __post_init__(self) -> None:
        _checks.fields(self)


T = TypeVar("T", bound=RulePart)

_bases: dict[str, type] = {}  # kind -> the base class of all parts of this kind
_parts: dict[tuple[str, str], type] = {}  # (kind, name) -> class
_presets: dict[str, Callable[..., Any]] = {}


def fill() -> None:
    """Import the package's own parts and presets, which register themselves. fastagg/__init__.py replaces this
    function."""


def add_kind(kind: str, base: type) -> None:
    """Declare ``base`` as the base class of the parts of this kind: ``direction``, ``optimizer`` or ``staleness``."""
    _bases[kind] = base


def register(part: type[T]) -> type[T]:
    """Register a part of your own, so that checkpoints with this part can be loaded. This is a class decorator.

    ::

        @fastagg.register
        @dataclass(frozen=True)
        class Inverse(fastagg.Staleness):
            power: float = 1.0
            ...

    The part's name is the class's name. A program must register the class before it calls :func:`fastagg.load`. A
    checkpoint contains the name and the settings, but never code.

    Args:
        part: a frozen dataclass derived from :class:`fastagg.Direction`, :class:`fastagg.Optimizer` or
            :class:`fastagg.Staleness`. Its fields are its settings: numbers, text, None, and lists, tuples and dicts of
            these.

    Returns:
        ``part``, unchanged.

    Raises:
        ConfigError: ``part`` is not such a class, or another class has this name. If the same class is defined again,
            for example by a notebook's cell that runs twice, the new class replaces the old one without an error.

    Example:
        >>> from dataclasses import dataclass
        >>> @fastagg.register
        ... @dataclass(frozen=True)
        ... class Fresh(fastagg.Staleness):
        ...     weighs = True
        ...     def weight(self, delay):
        ...         return float(delay == 0)
        >>> fastagg.Server(torch.zeros(2), staleness=Fresh()).staleness
        Fresh()
    """
    kind = _kind(part)
    name = part.__name__
    if not is_dataclass(part) or "__dataclass_fields__" not in vars(part):
        raise ConfigError(f"register: {name} must be a dataclass: put @dataclass(frozen=True) below @fastagg.register")
    there = _parts.get((kind, name))
    if there is not None and _path(there) != _path(part):
        raise ConfigError(f"register: there is another {kind} {name!r}, {_path(there)}: call {_path(part)} otherwise")
    if "__init__" in vars(part) and not hasattr(part.__init__, "__wrapped__"):
        names = {*inspect.signature(part.__init__).parameters} - {"self"}
        if names == {field.name for field in fields(part) if field.init}:  # @dataclass made `__init__`
            part.__init__ = _keywords.checked(part.__init__)
    _parts[kind, name] = part
    return part


def parts(kind: str) -> Mapping[str, type]:
    """Return all parts of a kind (``direction``, ``optimizer`` or ``staleness``): name -> class."""
    fill()
    return {name: part for (of, name), part in _parts.items() if of == kind}


def describe(part: Any) -> Plain:
    """Return a part as plain data: ``{"name": ..., **settings}``. :func:`part` makes an equal part from this data."""
    kind, name = _kind(type(part)), type(part).__name__
    there = _parts.get((kind, name))
    if there is not None and _path(there) != _path(type(part)):
        raise ConfigError(f"{kind}: {_path(type(part))} has the name of {_path(there)}: call it otherwise")
    settings = part.settings() if hasattr(part, "settings") else asdict(part)
    return {"name": name, **settings}


def check_settings(part: object) -> None:
    """Raise ConfigError if a user's own part has a setting that a checkpoint cannot hold."""
    if type(part).__module__.startswith("fastagg.") or not is_dataclass(part):
        return
    for setting in fields(part):
        if setting.init and not _plain(value := getattr(part, setting.name)):
            what = "a number, text or None, or a list, tuple or dict of them, which a checkpoint can hold"
            raise ConfigError(_checks.wrong(f"{type(part).__name__}: {setting.name}", what, value))


def _plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def part(kind: str, settings: Mapping[str, object]) -> Any:
    """Return the part of this kind from ``settings``, the result of :func:`describe`. MissingPart: no such part is
    registered. ConfigError: a setting is refused."""
    values = dict(settings)
    name = values.pop("name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"{kind}: expected the name of a part, got {name!r}")
    part_class = _parts.get((kind, name))
    if part_class is None:
        raise MissingPart(
            f"the checkpoint needs the {kind} {name!r}, which is not registered: "
            f"call fastagg.register({name}) before load()"
        )
    known = [field.name for field in fields(part_class) if field.init]
    for key in values:
        if key not in known:
            raise ConfigError(f"{kind} {name}: {_checks.unknown('setting', key, known)}")
    try:
        return part_class(**values)
    except TypeError as error:
        raise ConfigError(f"{kind} {name}: {error}") from error


def preset(function: Callable[P, R]) -> Callable[P, R]:
    """Register a preset under its name, and return it. Wrong keywords raise WrongArguments with the line to write.

    Keywords that the preset passes on to :class:`fastagg.Server` must be typed, for example as ``**server:
    Unpack[fastagg.ServerSettings]``."""
    checked = _keywords.checked(function, _place)
    _presets[function.__name__] = checked
    return checked


def _place(key: str) -> str:
    """Return the message that a preset lacks the setting ``key``, and which of our parts have it. Empty: none has."""
    ours = (part for part in _parts.values() if part.__module__.startswith("fastagg."))
    owners = [part.__name__ for part in ours if any(setting.name == key and setting.init for setting in fields(part))]
    owners = ["Server"] if key in _bases else owners
    line = "write fastagg.Server(params, direction, optimizer, staleness)"
    return f"unknown setting {key!r}: it belongs to {', '.join(owners)}; {line}" if owners else ""


def presets() -> Mapping[str, Callable[..., Any]]:
    """Return all presets, by name. Recipes and other frameworks' configurations may use these names."""
    fill()
    return MappingProxyType(_presets)


def _kind(part: object) -> str:
    for kind, base in _bases.items():
        if isinstance(part, type) and issubclass(part, base):
            return kind
    bases = " or ".join(f"fastagg.{base.__name__}" for base in _bases.values())
    raise ConfigError(f"register: expected a class derived from {bases}, got {part!r}")


def _path(part: type) -> str:
    return f"{part.__module__}.{part.__qualname__}"
