"""Unknown keyword arguments: a named error with the nearest known name, instead of Python's own error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from fastagg import _checks
from fastagg.errors import UnknownSetting

P = ParamSpec("P")
R = TypeVar("R")


class Keywords(NamedTuple):
    """The names of a function's arguments."""

    settings: frozenset[str]  # keywords, including those of an unpacked TypedDict
    required: frozenset[str]  # keywords without a default
    positional: frozenset[str]  # those that may also be positional


@cache
def of(function: Callable[..., Any]) -> Keywords:
    """Return the arguments of ``function``. They are looked up at the first use, not when the package is imported."""
    found = inspect.signature(function).parameters.values()
    own = [p for p in found if p.kind is p.KEYWORD_ONLY]
    settings = {p.name for p in own}
    for passed_on in (p.name for p in found if p.kind is p.VAR_KEYWORD):
        (typed,) = get_args(get_type_hints(function)[passed_on])  # Unpack[a TypedDict]
        settings |= typed.__annotations__.keys()
    return Keywords(
        frozenset(settings),
        frozenset(p.name for p in own if p.default is p.empty),
        frozenset(p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"),
    )


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with its name, signature and documentation. An unknown keyword raises UnknownSetting.

    If it passes on ``**keywords``, these must be typed as ``Unpack[a TypedDict]``, which lists the known ones.
    """
    name = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        settings, _, positional = of(function)
        for key in given:
            if key not in settings and key not in positional:
                raise UnknownSetting(f"{name}: {_checks.unknown('setting', key, settings | positional)}")
        return function(*args, **given)

    return call
