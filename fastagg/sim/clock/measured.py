"""Durations as they were measured, from a CSV file."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TypeVar

from fastagg import _checks
from fastagg.errors import DataError
from fastagg.sim.data.files import read_text

Item = TypeVar("Item")

_CLIENTS, _VALUES = 50, 20  # the most that are taken


def read_delays(path: Path) -> list[list[float]]:
    """Read measured delays: a list for each client; at most 50 clients with at most 20 values, evenly chosen.

    Raises:
        DataError: the file cannot be read, or has another form.
    """
    found: dict[str, list[float]] = {}
    try:
        lines = read_text(path).splitlines()
    except DataError as error:
        raise DataError(f"delays: {error}; expected lines of client,seconds or only seconds") from None
    for number, line in enumerate(lines, start=1):
        client, _, seconds = line.rpartition(",")
        try:
            if "," in client:  # a third column: a round, or a time, would pass for a part of the client's name
                raise ValueError(line)
            found.setdefault(client or str(number), []).append(_checks.number("seconds", float(seconds), above=0))
        except ValueError:
            if number > 1 and line.strip():  # the first line may be a header
                what = f"{path}, line {number}: expected client,seconds or only seconds, above 0"
                raise DataError(f"delays: {what}, got {line!r:.80}") from None
    if not (found := {client: own for client, own in found.items() if own}):
        raise DataError(f"delays: {path}: expected lines of client,seconds or only seconds, got none")
    return _some(sorted((_some(sorted(own), _VALUES) for own in found.values()), key=statistics.fmean), _CLIENTS)


def _some(values: list[Item], most: int) -> list[Item]:
    """Return at most so many of the values, evenly chosen."""
    count = min(most, len(values))
    return [values[(2 * place + 1) * len(values) // (2 * count)] for place in range(count)]
