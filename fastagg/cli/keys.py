"""Keys of recipes on the command line: KEY=VALUE, KEY=VALUE,VALUE and KEY=LOW..HIGH."""

from __future__ import annotations

import re

from fastagg._checks import parse_change as parse_change
from fastagg.errors import ConfigError
from fastagg.sim.many.search import Range

_CHOICE = r"""((?:"[^"]*"|'[^']*'|\[[^]]*\]|\{[^}]*\}|[^,])*),"""


def parse_choices(text: str) -> tuple[str, list[object]]:
    """Split "client.lr=0.1,0.3" into its key and its values. A comma inside brackets or quotes does not separate."""
    key, equals, values = text.partition("=")
    parts = re.findall(_CHOICE, f"{values},")
    if len(parts) > 1 and not all(map(str.strip, parts)):
        raise ConfigError(f"expected key=value,value such as client.lr=0.1,0.3, got {text!r}")
    parsed = [parse_change(f"{key}{equals}{part}") for part in parts]
    return parsed[0][0], [value for _, value in parsed]


def parse_range(text: str) -> tuple[str, Range]:
    """Split "client.lr=0.01..1" into its key and its range. ConfigError for another form."""
    key, _, span = text.partition("=")
    found = re.fullmatch(r"\s*(\S+?)\.\.(\S+)\s*", span)
    try:
        if found is None or not key.strip():
            raise ValueError
        low, high = (int(end) if re.fullmatch(r"[-+]?\d+", end) else float(end) for end in found.groups())
        if not low < high < float("inf") or low == -float("inf"):
            raise ValueError
    except ValueError:
        raise ConfigError(f"--search: expected KEY=LOW..HIGH such as client.lr=0.01..1, got {text!r}") from None
    return key.strip(), Range(low, high)
