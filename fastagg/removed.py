"""What left the package, and what to use instead: names, settings and options as they were written. Kept for one
release, but for what old folders and files may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastagg.errors import MissingPart

_WORDS = "words do the same: `fastagg recipes fadas digits` lists what has both in its line"
_MOMENTS = "Adam's moments start from zero at every version, as without it"

REMOVED: dict[str, str] = {
    **{f"recipes --{name}": _WORDS for name in ("algorithm", "data", "kind", "no-files")},
    "distill.keep_moments": _MOMENTS,
    "keep_moments=": _MOMENTS,
    "memory=": "Tiered asks the system for a client's cached update when that is sent a model, and the page cache "
    "decides what stays: leave it out, and leave memory free",
    "origin=": "fastagg.parts(model, count) cuts a model above one host's memory by whole tensors, one Server each, "
    "here or as Ray's actors (fastagg.integrations.ray.Parts): docs/scaling.md",
    "sketch=": "versions are kept while a client may answer them, and distances are exact (fastagg.ops.distances)",
}

# A setting that left -> the value that it must have had, in a folder or a checkpoint, for it to be opened.
SETTINGS: dict[str, object] = {"keep_moments": False, "origin": 0, "sketch": None}


def remaining(settings: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return what was stored of a server's or a rule's settings, without those that left.

    Args:
        known: the settings that it has now. One of these is nothing that left: it is a rule's of somebody else.
    """
    gone = {name: value for name, value in settings.items() if name in SETTINGS and name not in known}
    for name, value in gone.items():
        if value != SETTINGS[name]:
            raise MissingPart(f"it was made with {name}={value!r:.150}, which is gone: {REMOVED[name + '=']}")
    now = known if isinstance(known, Mapping) else {}  # has the rules' settings, too
    return {
        name: remaining(value, now[name]) if isinstance(value, dict) and isinstance(now.get(name), dict) else value
        for name, value in settings.items()
        if name not in gone
    }
