"""Checks of settings. All raise ConfigError with the expected and the given value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fastagg.errors import ConfigError

_LARGEST = 3.4e38  # of float32, in which kernels compute

# Names of our settings in other libraries and papers, if the spelling is too different to guess.
_ELSEWHERE = {
    "learning_rate": "lr", "server_lr": "lr", "server_learning_rate": "lr", "eta": "lr", "step_size": "lr",
    "epsilon": "eps", "tau": "eps", "m": "buffer_size", "n": "num_clients", "clients": "num_clients",
    "max_norm": "clip_norm", "momentum": "beta",
}  # fmt: skip


def number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> float:
    """Return ``value`` if it is a number that is finite in float32, ``> above`` and ``>= least`` if these are given."""
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
    """Return ``value`` if it is a whole number ``>= least``, and ``<= most`` if this is given."""
    bad = isinstance(value, bool) or not isinstance(value, int) or value < least
    if bad or (most is not None and value > most):
        bound = f">= {least}" if most is None else f"in {least}..{most}"
        raise ConfigError(f"{name}: expected a whole number {bound}, got {value!r}")
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if value not in choices:
        expected = f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}"
        raise ConfigError(expected + meant(value, choices))
    return str(value)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message about an unknown name. It contains the nearest known name, or all of them."""
    known = sorted(known)
    return f"unknown {what} {name!r}" + (meant(name, known) or f"; known: {', '.join(known)}")


def meant(name: Any, known: Iterable[str]) -> str:
    """Return ``; did you mean 'scaled'?`` for ``'scald'``; an empty text if no known name is near."""
    if not isinstance(name, str):
        return ""
    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    near = [_ELSEWHERE[lower]] if _ELSEWHERE.get(lower) in by_lower else difflib.get_close_matches(lower, by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
