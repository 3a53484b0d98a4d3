"""What is wrong with a recipe, in one line that names the keys."""

from __future__ import annotations

import re
import reprlib

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fastagg import _checks, _keywords, registry
from fastagg.sim.data.sections import SECTIONS, by_name
from fastagg.sim.recipes.delays import AnyDelay
from fastagg.sim.recipes.sections import Algorithm, Client, Distill, Dropout, Model, Own, Participation, Run, Unlabelled
from fastagg.sim.section import Section

_MOST = 8  # problems in a message


def explain(error: ValidationError, top: type[Section]) -> str:
    """Turn pydantic's report about ``top`` into one line, with each problem as "key: what is wrong"."""
    found = error.errors(include_url=False)
    shown = [_problem(item, top) for item in found[:_MOST]]
    return "; ".join([*shown, f"and {len(found) - _MOST} more"] if len(found) > _MOST else shown)


def on_one_line(text: str) -> str:
    """``text``, or its repr if it would break the line of a message."""
    return text if text.isprintable() else repr(text)


def _problem(item: ErrorDetails, top: type[Section]) -> str:
    # pydantic's location of a tagged section contains the tag (data, digits, alpha), but the user's key does not.
    where = ".".join(on_one_line(str(part)) for part in item["loc"] if part not in _TAGS)
    given = reprlib.repr(item["input"])  # shortened
    if item["type"] == "extra_forbidden":
        known, key = _known(item["loc"], top), str(item["loc"][-1])
        keys = " or ".join([full for full in full_keys(key) if full != where][:4])
        if keys and len(item["loc"]) == 1:
            return f"unknown key {where}, got {given}; did you mean {keys}?"
        near = _checks.meant(key, known) or (keys and f"; there is {keys}")
        return f"unknown key {where} (known here: {', '.join(known)}){near}"
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "missing":
        message = "this key is missing"
    elif item["type"] == "union_tag_not_found":
        message = "the key name is missing"
    elif item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        message = f"expected a section with keys, got {given}"
    elif item["type"] == "union_tag_invalid":
        known = item["ctx"]["expected_tags"].replace("'function', 'given'", "'module:function'")  # as in a recipe
        message = f"unknown name {item['ctx']['tag']!r} (known: {known})" + _meant(item["ctx"]["tag"], known)
    elif not item["type"].startswith("value_error"):
        message = message.replace("'function' or 'given'", "'module:function'")
        message = f"{message[:1].lower()}{message[1:]}, got {given}" + _meant(item["input"], message)
    return f"{where}: {message}" if where else message


_TAGGED: dict[str, type[Section]] = {**SECTIONS, **by_name(AnyDelay)}
_TAGS = frozenset(_TAGGED)
# Sections with only one kind. For other sections pydantic's location names the kind.
_PLAIN: dict[str, type[Section]] = {
    "algorithm": Algorithm, "model": Model, "client": Client, "dropout": Dropout, "participation": Participation,
    "unlabelled": Unlabelled, "distill": Distill, "own": Own, "run": Run,
}  # fmt: skip


def _meant(given: object, message: str) -> str:
    """Return the nearest of the names that a message has in quotes."""
    return _checks.meant(given, re.findall(r"'([^']+)'", message))


def full_keys(key: str) -> list[str]:
    """Return all dotted keys that end with ``key``: "client.lr", "algorithm.lr" and others for "lr"."""
    held: dict[str, set[str]] = {name: set(section.model_fields) for name, section in _PLAIN.items()}
    for name, section in _TAGGED.items():
        held.setdefault("data" if name in SECTIONS else "delay", set()).update(section.model_fields)
    held["algorithm"] = {name for preset in registry.presets().values() for name in _keywords.of(preset).settings}
    first = ("client", "algorithm", "data", "run")
    return [f"{name}.{key}" for name in (*first, *(held.keys() - set(first))) if key in held[name]]


def _known(location: tuple[int | str, ...], section: type[Section]) -> list[str]:
    for part in location[:-1]:
        section = _TAGGED.get(str(part)) or _PLAIN.get(str(part)) or section
    return list(section.model_fields)
