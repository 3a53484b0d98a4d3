"""Checks of settings, all raising ConfigError with what was expected and what came."""

from __future__ import annotations

from typing import Any

from fastagg.errors import ConfigError

_LARGEST = 3.4e38  # of float32, in which kernels compute


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
        raise ConfigError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)
