"""Checks arguments. An error's message has the argument, the expected values, the actual value, and often what to do.

All modules may use this module. It imports neither torch nor the extension, because the command line must start fast.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import reprlib
import sys
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from fastagg._types import Arrays
from fastagg.errors import ConfigError

_LARGEST = 3.4e38  # about the largest number of float32, the type in which kernels compute
_MOST = 2**63 - 1  # the largest whole number in native code

# Names in other libraries and papers -> our names for the same argument or method, if the spellings differ too much for
# a guess. The message of an error proposes the first of our names that exists in the place of the wrong name.
_ELSEWHERE = {
    "learning_rate": ("lr", "alpha"), "server_lr": ("lr", "alpha"), "server_learning_rate": ("lr", "alpha"),
    "eta": ("lr", "alpha"), "lr": ("alpha", "lam"), "step_size": ("lr",), "epsilon": ("eps",), "tau": ("eps",),
    "m": ("buffer_size",), "buffer": ("buffer_size",), "buffer_size": ("size", "clients_per_round"),
    "n": ("num_clients",), "clients": ("num_clients",), "cohort": ("clients_per_round",),
    "clients_per_round": ("buffer_size",),
    "max_norm": ("clip_norm",), "momentum": ("beta",), "samples": ("num_samples",), "weight": ("num_samples",),
    "num_examples": ("num_samples",), "params": ("update", "parameters"), "model": ("parameters",),
    "weights": ("parameters", "params"), "get_parameters": ("parameters",), "state": ("state_dict",),
    "aggregate": ("receive",), "update": ("receive",), "step": ("receive",), "send": ("dispatch",),
    "sample": ("dispatch",), "rounds": ("versions",), "f": ("num_malicious_nodes",), "keep": ("num_nodes_to_select",),
    "trim": ("beta",), "gpu": ("cuda",),
}  # fmt: skip


_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Warn with ``text``. The warning shows the source line outside fastagg that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


class SettingRule(NamedTuple):
    """The values that a setting may have, besides its type: ``lr: Annotated[float, SettingRule(least=0)]``.

    Attributes:
        default: the setting's value if it is left out and the declaration has no default of its own.
        least, above, below, most: the range of a number. ``above`` and ``below`` exclude the bound.
        name: the setting's name in messages. Empty: the name in the declaration.
        free: whether a server's folder may be opened with another value than before (:func:`fastagg.open`).
        kept: whether a checkpoint contains the setting.
    """

    default: Any = None
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None
    name: str = ""
    free: bool = False
    kept: bool = True


Number = Annotated[float, SettingRule()]
Positive = Annotated[float, SettingRule(above=0)]
NotNegative = Annotated[float, SettingRule(least=0)]
Divisor = Annotated[float, SettingRule(least=1e-30)]
Decay = Annotated[float, SettingRule(least=0, below=1)]
Betas = tuple[Decay, Decay]
Count = Annotated[int, SettingRule(least=1)]
Size = Annotated[int, SettingRule(least=1, name="buffer_size")]


class _ShortRepr(reprlib.Repr):
    """Shows a class by its name, a model by its class, and an array by its type and shape. Shortens other reprs."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80
        self.maxdict = self.maxlist = self.maxtuple = 3

    def repr_instance(self, value: Arrays, level: int) -> str:
        if isinstance(value, type):
            return f"the class {value.__name__}"
        if hasattr(value, "named_parameters"):
            return f"a model ({type(value).__name__})"
        if len(getattr(value, "shape", ())):
            return f"a {str(value.dtype).removeprefix('torch.')} array of shape {list(value.shape)}"
        return self.repr_dict(dict(value), level) if isinstance(value, Mapping) else super().repr_instance(value, level)


def wrong(name: str, expected: str, value: object, do: str = "") -> str:
    """Return the message about a wrong value of ``name``. ``do``: what the user should do. Empty: nothing is added."""
    return f"{name}: expected {expected}, got {shown(value)}" + (f"; {do}" if do else "")


def shown(value: object) -> str:
    """Return a value in a few words on one line."""
    try:
        return " ".join(_ShortRepr().repr(value).split())
    except Exception:  # a user's own class may raise anything
        return f"an object of type {type(value).__name__}"


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error about a missing attribute of ``owner``. The message has a similar attribute, if there is one."""
    what, near = f"{type(owner).__name__!r} object", ""
    if not name.startswith("_"):
        near = meant(name, [known for known in dir(owner) if not known.startswith("_")])
    if isinstance(owner, ModuleType):
        what, near = f"module {owner.__name__!r}", near or f"; dir({owner.__name__}) lists what it has"
    # With `obj`, Python would add a suggestion of its own.
    return AttributeError(f"{what} has no attribute {name!r}{near}", name=name, obj=None)


def number(name: str, value: object, *, above: float | None = None, least: float | None = None) -> float:
    """Return ``value`` as a float if it is finite in float32, ``> above`` and ``>= least`` (None: no bound). Otherwise
    raise ConfigError."""
    bound = f" >= {least}" if least is not None else f" > {above}" if above is not None else ""
    if (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= _LARGEST
        and (above is None or value > above)
        and (least is None or value >= least)
    ):
        return float(value)
    raise ConfigError(wrong(name, f"a finite float32 number{bound}", value, _in_python(name, value, float)))


def whole(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """Return ``value`` if it is an int in ``least..most``. Otherwise raise ConfigError. ``most`` None: 2**63-1."""
    limit = _MOST if most is None else most
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= limit:
        return value
    plain = most is None and not (isinstance(value, int) and value > limit)
    bound = f">= {least}" if plain else f"in {least}..{limit}"
    raise ConfigError(wrong(name, f"a whole number {bound}", value, _in_python(name, value, int)))


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False. Otherwise, also for a text such as "no", raise ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(wrong(name, "True or False", value, _in_python(name, value, bool)))
    return value


def fits(name: str, value: Any, hint: Any) -> Any:
    """Return ``value`` if it fits ``hint``, a type with a :class:`SettingRule`. Otherwise raise ConfigError. The checks
    are for bools, numbers with a rule, Literals of words, and tuples of such numbers. Other types are not checked. A
    list becomes a tuple, because TOML and JSON have no tuples."""
    kinds = dict(_kinds(hint, None))
    if value is None and NoneType in kinds:
        return value
    rule = next((rule for rule in kinds.values() if rule), None)
    name = rule.name or name if rule else name
    classes = (*(kind for kind in kinds if isinstance(kind, type)), *[int] * (float in kinds))
    for kind in kinds:
        if get_origin(kind) is Literal and not isinstance(value, classes):
            return one_of(name, value, get_args(kind))
        if get_origin(kind) is tuple and not says_nothing(kind):
            items = get_args(kind)
            if not isinstance(value, (tuple, list)) or len(value) != len(items):
                raise ConfigError(wrong(name, f"{'two' if len(items) == 2 else len(items)} numbers", value))
            return tuple(fits(f"{name}[{k}]", value[k], item) for k, item in enumerate(items))
    if bool in kinds:
        return flag(name, value)
    if rule and int in kinds:
        return whole(name, value, least=int(rule.least or 0), most=None if rule.most is None else int(rule.most))
    if rule and float in kinds:
        checked = number(name, value, above=rule.above, least=rule.least)
        if (rule.below is not None and checked >= rule.below) or (rule.most is not None and checked > rule.most):
            begin = f"({rule.above:g}" if rule.least is None else f"[{rule.least:g}"
            end = f"{rule.most:g}]" if rule.below is None else f"{rule.below:g})"
            raise ConfigError(wrong(name, f"a number in {begin}, {end}", value))
    return value


def _kinds(hint: Any, rule: SettingRule | None) -> Iterator[tuple[Any, SettingRule | None]]:
    """Yield each type of a union, or the only type, with its rule. ``rule``: the rule of the whole. None: no rule."""
    if get_origin(hint) is Annotated:
        yield from _kinds(hint.__origin__, hint.__metadata__[0])
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _kinds(part, rule)
    else:
        yield hint, rule


def fields(owner: object, prefix: str = "") -> None:
    """Check the fields of ``owner`` that a dataclass of fastagg declares. Fields of a user's subclass are not checked.
    A list in a field for a tuple becomes a tuple. ``prefix``: stands before the fields' names in messages."""
    for name, hint in hints(own_class(owner)).items():
        value = getattr(owner, name)
        checked = fits(prefix + name, value, hint)
        if checked is not value:
            object.__setattr__(owner, name, checked)


def own_class(owner: object) -> type:
    """Return the class of an object. If a user has defined it, return the first class of fastagg that it inherits."""
    return next(base for base in type(owner).__mro__ if base.__module__.startswith("fastagg."))


@cache
def hints(kind: Any) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, with their rules."""
    types = get_type_hints(kind, include_extras=True)
    return {field.name: types[field.name] for field in dataclasses.fields(kind)}


def says_nothing(hint: Any) -> bool:
    """Return whether :func:`fits` accepts any number or text for a type, because the type has no rule."""
    return any(
        rule is None and (kind in (float, int, str) or (get_origin(kind) is tuple and says_nothing(get_args(kind)[0])))
        for kind, rule in _kinds(hint, None)
    )


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(wrong(name, f"one of {', '.join(map(repr, choices))}", value) + meant(value, choices))
    return value


def path(name: str, value: object) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(wrong(name, "a path: a str or a pathlib.Path", value))
    try:
        os.fspath(value).encode()
    except (UnicodeEncodeError, AttributeError):  # logs, JSON and messages need the path in UTF-8
        raise ConfigError(wrong(name, "a path in UTF-8", value)) from None
    return Path(value)


def parse_change(text: str) -> tuple[str, object]:
    """Split "client.lr=0.1" into the key and the value. A value that is not valid TOML is plain text."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"expected key=value such as client.lr=0.1, got {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name. The message has the most similar known name, or, without a similar one,
    all known names. ``what``: the kind of name, such as "setting"."""
    known = sorted(known)
    return f"unknown {what} {name!r}" + (meant(name, known) or f"; known: {', '.join(known)}")


def meant(name: object, known: Iterable[str]) -> str:
    """Return ``; did you mean 'scaled'?`` for ``'scald'``. If no known name is similar, return an empty text."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def nearest(name: object, known: Iterable[str], *, guess: bool = True) -> str | None:
    """Return the known name that was probably meant, or None. ``guess``: whether to accept a similar spelling. False:
    only another library's name for it, the same letters in another case, or one word of it."""
    if not isinstance(name, str):
        return None
    by_lower = {spelling.lower(): spelling for spelling in known}
    lower = name.lower()
    near = [spelling for spelling in _ELSEWHERE.get(lower, ()) if spelling in by_lower]
    near = near or [spelling for spelling in sorted(by_lower) if lower in spelling.split("_")]
    if guess:
        near = near or difflib.get_close_matches(lower, by_lower, 1)
    return by_lower[near[0]] if near else None


def _in_python(name: str, value: object, kind: type) -> str:
    """Return what to write if ``value`` is a ``kind`` in quotes or of another library. Otherwise return ""."""
    try:
        if isinstance(value, str) and kind is not bool:
            return f"write {kind(value)} without quotes"
        return f"write {kind.__name__}({name})" if hasattr(value, "item") and kind(value) == value else ""
    except (TypeError, ValueError, RuntimeError):
        return ""
