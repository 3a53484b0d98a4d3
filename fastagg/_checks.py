"""Checks of settings, all raising ConfigError with what was expected and what came."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fastagg.errors import ConfigError

_LARGEST = 3.4e38  # of float32, in which kernels compute

# What other libraries and papers call our settings, where the spelling does not tell.
_ELSEWHERE = {
    "learning_rate": "lr", "server_lr": "lr", "server_learning_rate": "lr", "eta": "lr", "step_size": "lr",
    "epsilon": "eps", "tau": "eps", "m": "buffer_size", "n": "num_clients", "clients": "num_clients",
    "max_norm": "clip_norm", "momentum": "beta",
}  # fmt: skip


def number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> float:
    """A number that is finite in float32, ``> above`` or ``>= least`` where given."""
    bound = (
        ""
        if above is None and least is None
        else f" {'>' if least is None else '>='} " + str(above if least is None else least)
    )
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST
    if bad or (above is not None and value <= above) or (least is not None and value < least):
        raise ConfigError(f"{name}: expected a finite float32 number{bound}, got {value!r}")
    return float(value)


def whole(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """A whole number ``>= least``, and ``<= most`` where given."""
    bad = isinstance(value, bool) or not isinstance(value, int) or value < least
    if bad or (most is not None and value > most):
        bound = f">= {least}" if most is None else f"in {least}..{most}"
        raise ConfigError(f"{name}: expected a whole number {bound}, got {value!r}")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """One of ``choices``."""
    if value not in choices:
        expected = f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise ConfigError(expected + meant(value, choices))
    return str(value)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not known: the nearest one that is, or all of them."""
    known = sorted(known)
    return f"unknown {what} {name!r}" + (meant(name, known) or f"; known: {', '.join(known)}")


def meant(name: Any, known: Iterable[str]) -> str:
    """``; did you mean 'scaled'?`` for ``'scald'``; empty where nothing known is near."""
    if not isinstance(name, str):
        return ""
    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    near = [_ELSEWHERE[lower]] if _ELSEWHERE.get(lower) in by_lower else difflib.get_close_matches(lower, by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
