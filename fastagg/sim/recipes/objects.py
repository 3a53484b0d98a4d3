"""Functions in place of names: what a dict may hold where TOML has "module:function"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastagg._types import Plain

# A section that is only a function, by the key that stands for it.
_ALONE = {
    "algorithm": "algorithm.name", "delay": "delay.name", "sampling": "participation.sampling", "model": "model.name",
}  # fmt: skip
_FIXED = {"algorithm.name", "delay.name", "participation.sampling", "model.name"}


def taken(values: Mapping[str, object]) -> tuple[Plain, dict[str, Callable[..., Any]]]:
    """Return ``values``, nested or by dotted key, with "given" in place of functions, and the functions by their keys.

    A section that is a function is a section with its name: ``{"delay": law}`` is ``{"delay": {"name": law}}``. An
    algorithm that is a name is a section, too.
    """
    plain: Plain = {}
    found: dict[str, Callable[..., Any]] = {}
    for key, value in values.items():
        if key == "algorithm" and isinstance(value, str):
            plain[key] = {"name": value}
        elif key in _ALONE and (callable(value) or key == "sampling"):
            section, _, last = _ALONE[key].partition(".")
            name = "given" if callable(value) else value
            plain |= {f"{section}.{last}": name} if key == "sampling" else {section: {last: name}}
            found |= {_ALONE[key]: value} if callable(value) else {}
        elif isinstance(value, Mapping):
            inner, more = _inside(key, value)
            plain[key], found = inner, {**found, **more}
        elif _is_place(key) and callable(value):
            plain[key], found[key] = "given", value
        else:
            plain[key] = value
    return plain, found


def _inside(section: str, values: Mapping[str, object]) -> tuple[Plain, dict[str, Callable[..., Any]]]:
    dotted = {f"{section}.{key}": value for key, value in values.items() if _is_place(f"{section}.{key}")}
    found: dict[str, Callable[..., Any]] = {key: value for key, value in dotted.items() if callable(value)}
    return {key: "given" if f"{section}.{key}" in found else value for key, value in values.items()}, found


def _is_place(key: str) -> bool:
    return key in _FIXED or key.startswith("own.")
