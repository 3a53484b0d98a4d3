"""Every name there is: the presets, the parts, and users' own.

Parts go into checkpoints as a name and settings, so whoever reads one must know the names. The package's own are
registered by :mod:`fastagg.parts` and :mod:`fastagg.presets`, a user's by :func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fastagg import _checks, _keywords
from fastagg.errors import ConfigError, MissingPart

if TYPE_CHECKING:  # the registry is below the parts
    from fastagg.parts.directions import Direction
    from fastagg.parts.optimizers import Optimizer
    from fastagg.parts.staleness import Staleness

P = ParamSpec("P")
R = TypeVar("R")
Part = TypeVar("Part", bound="Direction | Optimizer | Staleness")

_bases: dict[str, type] = {}  # kind -> the class that all parts of this kind derive from
_parts: dict[tuple[str, str], type] = {}  # (kind, name) -> class
_presets: dict[str, Callable[..., Any]] = {}
_fill: list[Callable[[], None]] = []  # imports the package's own parts and presets, which register themselves


def filled_by(fill: Callable[[], None]) -> None:
    """Call ``fill`` before anybody lists names: the package's own may not be imported yet."""
    _fill[:] = [fill]


def add_kind(kind: str, base: type) -> None:
    """Parts derived from ``base`` are of this kind: ``direction``, ``optimizer`` or ``staleness``."""
    _bases[kind] = base


def register(part: type[Part]) -> type[Part]:
    """Make checkpoints with a part of one's own loadable: a class decorator.

    ::

        @fastagg.register
        @dataclass(frozen=True)
        class Inverse(fastagg.Staleness):
            power: float = 1.0
            ...

    Its name is the class's. The program that loads the checkpoint must register it, too, before
    :func:`fastagg.load`: a checkpoint holds the name and the settings, never code.

    Args:
        part: a frozen dataclass derived from :class:`fastagg.Direction`, :class:`fastagg.Optimizer` or
            :class:`fastagg.Staleness`. Settings are its fields: numbers, text, None, and lists, tuples and dicts of
            them.

    Returns:
        ``part``, as it came.

    Raises:
        ConfigError: it is no such class, or another one has this name. The same class defined again, as when a
            notebook's cell runs twice, takes the place of the old one.
    """
    kind = _kind(part)
    name = part.__name__
    if not is_dataclass(part) or "__dataclass_fields__" not in vars(part):
        raise ConfigError(f"register: {name} must be a dataclass: put @dataclass(frozen=True) below @fastagg.register")
    there = _parts.get((kind, name))
    if there is not None and _path(there) != _path(part):
        raise ConfigError(f"register: there is another {kind} {name!r}, {_path(there)}: call {_path(part)} otherwise")
    _parts[kind, name] = part
    return part


def parts(kind: str) -> Mapping[str, type]:
    """Name to class, of all parts of a kind: ``direction``, ``optimizer`` or ``staleness``."""
    _filled()
    return {name: part for (of, name), part in _parts.items() if of == kind}


def describe(part: Any) -> dict[str, Any]:
    """A part as plain data: ``{"name": ..., **settings}``, from which :func:`part` makes it again.

    Raises:
        ConfigError: another part is registered under its name, so that one would come back instead.
    """
    kind, name = _kind(type(part)), type(part).__name__
    there = _parts.get((kind, name))
    if there is not None and _path(there) != _path(type(part)):
        raise ConfigError(f"{kind}: {_path(type(part))} has the name of {_path(there)}: call it otherwise")
    settings = part.settings() if hasattr(part, "settings") else asdict(part)
    return {"name": name, **settings}


def part(kind: str, settings: Mapping[str, Any]) -> Any:
    """The direction, optimizer or staleness policy that :func:`describe` described.

    Raises:
        MissingPart: no part of this kind has this name.
        ConfigError: it has no such setting, or the setting is out of range.
    """
    given = dict(settings)
    name = given.pop("name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"{kind}: expected the name of a part, got {name!r}")
    found = _parts.get((kind, name))
    if found is None:
        raise MissingPart(
            f"the checkpoint needs the {kind} {name!r}, which is not registered: "
            f"call fastagg.register({name}) before load()"
        )
    known = [field.name for field in fields(found) if field.init]
    for key in given:
        if key not in known:
            raise ConfigError(f"{kind} {name}: {_checks.unknown('setting', key, known)}")
    try:
        return found(**given)
    except TypeError as error:
        raise ConfigError(f"{kind} {name}: {error}") from error


def preset(function: Callable[P, R]) -> Callable[P, R]:
    """Register a preset under its name; a keyword that it does not have raises ConfigError with the nearest one.

    Keywords it passes on to :class:`fastagg.Server` are typed, ``**server: Unpack[fastagg.ServerSettings]``.
    """
    checked = _keywords.checked(function)
    _presets[function.__name__] = checked
    return checked


def presets() -> Mapping[str, Callable[..., Any]]:
    """Name to function, of all algorithms: what recipes and other frameworks' configurations may name."""
    _filled()
    return MappingProxyType(_presets)


def _filled() -> None:
    for fill in _fill:
        fill()


def _kind(part: Any) -> str:
    for kind, base in _bases.items():
        if isinstance(part, type) and issubclass(part, base):
            return kind
    bases = " or ".join(f"fastagg.{base.__name__}" for base in _bases.values())
    raise ConfigError(f"register: expected a class derived from {bases}, got {part!r}")


def _path(part: type) -> str:
    return f"{part.__module__}.{part.__qualname__}"
