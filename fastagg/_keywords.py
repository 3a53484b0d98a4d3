"""Keyword arguments that a function does not have: a named error with the nearest name, instead of Python's own."""

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
    """Names of what a function takes."""

    settings: frozenset[str]  # keywords, those of an unpacked TypedDict included
    required: frozenset[str]  # keywords without a default
    positional: frozenset[str]  # what may be given by place as well


@cache
def of(function: Callable[..., Any]) -> Keywords:
    """What ``function`` takes. Looked up when it is first asked for, not when the package is imported."""
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
    """``function``, its name, signature and documentation, but that a keyword it does not have raises UnknownSetting.

    What it passes on as ``**keywords`` must be typed, ``Unpack[a TypedDict]``: that is what says which there are.
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
