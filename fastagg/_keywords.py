"""Checks the names of a call's arguments. Presets, parts, the server and adapters use this module. A wrong or missing
name raises WrongArguments. The message says what to type, if this is clear."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from fastagg import _checks
from fastagg.errors import WrongArguments

P = ParamSpec("P")
R = TypeVar("R")


class Keywords(NamedTuple):
    """The names of a function's arguments, without ``self``."""

    settings: frozenset[str]  # keyword-only arguments, including those of a TypedDict in `**keywords`
    required: frozenset[str]  # keyword-only arguments of the signature without a default
    named: tuple[str, ...]  # keyword-only arguments of the signature, in order
    positional: tuple[str, ...]  # arguments that may also be positional, in order
    needed: tuple[str, ...]  # all arguments of the signature without a default, in order


@cache
def of(function: Callable[..., object]) -> Keywords:
    """Return the names of ``function``'s arguments. The result is kept for later calls."""
    bare = getattr(function, "func", function)  # unwrap a functools.partial
    parameters = [p for p in inspect.signature(inspect.unwrap(function)).parameters.values() if p.name != "self"]
    own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    settings = {p.name for p in own}
    for passed_on in (p.name for p in parameters if p.kind is p.VAR_KEYWORD):
        typed = get_args(get_type_hints(bare).get(passed_on))  # Unpack[a TypedDict]
        if len(typed) != 1:
            raise WrongArguments(
                f"{bare.__qualname__}: its **{passed_on} do not say which arguments they are: name them, or type "
                "them as Unpack[a TypedDict]"
            )
        settings |= typed[0].__annotations__.keys()
    return Keywords(
        frozenset(settings),
        frozenset(p.name for p in own if p.default is p.empty),
        tuple(p.name for p in own),
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
        tuple(p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD),
    )


def checked(function: Callable[P, R], place: Callable[[str], str] = lambda key: "") -> Callable[P, R]:
    """Return a wrapper of ``function``, with its name, signature and documentation, that checks the arguments' names.
    Wrong names raise WrongArguments.

    If ``function`` has ``**keywords``, these must be typed as ``Unpack[a TypedDict]``. The TypedDict lists the known
    keywords. ``place(keyword)`` returns a message that names the owners of an unknown keyword, or an empty text."""
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    public = tuple(f"fastagg.{room}" for room in ("distill", "durable", "presets", "rules", "server", "storage"))
    line = "fastagg." * function.__module__.startswith(public) + name

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        wrong = _wrong(of(function), args[function.__name__ == "__init__" :], keywords, place)
        if wrong:
            raise WrongArguments(f"{name}: {wrong[0]}" + (f"; write {line}({wrong[1]})" if wrong[1] else ""))
        return function(*args, **keywords)

    return call


def made(kind: Callable[..., R], settings: Mapping[Any, Any]) -> R:
    """Return an object of the class ``kind``. ``settings``: its arguments by name. Wrong names raise WrongArguments."""
    if not all(isinstance(key, str) for key in settings):
        raise WrongArguments(_checks.wrong(kind.__name__, "settings by their names", settings))
    return checked(kind)(**settings)


def passes_on(function: Callable[..., object], more: Mapping[str, object]) -> None:
    """In a function's signature, replace ``**keywords`` by the keywords in ``more``: name -> default."""
    own = inspect.signature(function, eval_str=True)
    plain = [parameter for parameter in own.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    passed = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in more.items()]
    function.__signature__ = own.replace(parameters=[*plain, *passed])  # type: ignore[attr-defined]


def _wrong(
    known: Keywords, args: tuple[object, ...], keywords: Mapping[str, object], place: Callable[[str], str]
) -> tuple[str, str] | None:
    """Return the message about a call's wrong arguments, and the text to write between the brackets instead (empty if
    this is not clear). None: the arguments are right."""
    settings, _, named, positional, needed = known
    for key in keywords:
        if key not in settings and key not in positional:
            names = settings.union(positional)
            elsewhere = "" if _checks.nearest(key, names, guess=False) else place(key)
            return elsewhere or _checks.unknown("setting", key, names), ""
    if len(args) > len(positional):
        extra = [f"{key}={_checks.shown(value)}" for key, value in zip(named, args[len(positional) :], strict=False)]
        places = f"{len(positional)} argument{'s'[: len(positional) != 1]} without a name"
        return f"expected at most {places}, got {len(args)}", ", ".join([*positional, *extra])
    missing = [key for key in needed if key not in positional[: len(args)] and key not in keywords]
    if missing:
        lines = [key if key in positional else f"{key}=..." for key in needed]
        return f"expected {', '.join(map(repr, missing))}, got no such argument", ", ".join(lines)
    return None
