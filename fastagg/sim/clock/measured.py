"""Durations of a real federation's tasks, from a CSV file, and the delay model that replays them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastagg import _checks
from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.server.watching import TIMES
from fastagg.sim.clock.delays import DelayModel
from fastagg.sim.data.files import read_text
from fastagg.sim.seeds import below, generator

_FORMS = f"{','.join(TIMES)} (with this header), client,seconds or only seconds"
_HEADERS = [TIMES, ("client", "seconds"), ("seconds",)]


class Durations(NamedTuple):
    """One client's durations, in the order of dispatch: of its first task, for which a real client loads its libraries
    and its data (empty if the file does not say when tasks were sent), and of its other tasks."""

    first: list[float]
    later: list[float]


def read_times(path: Path) -> dict[str, Durations]:
    """Read the durations of each client from a CSV file.

    With the header client,dispatched,answered, as :func:`fastagg.watch` writes it, times are on one clock, in seconds.
    Other files have lines of client,seconds in the order of dispatch, or only seconds, a client each. They may begin
    with the header client,seconds or seconds.

    Raises:
        DataError: the file cannot be read, has another form, or has no duration.
    """
    try:
        lines = csv.reader(io.StringIO(read_text(path), newline=""))
    except DataError as error:
        raise DataError(f"delays: {error}; expected lines of {_FORMS}") from None
    found: dict[str, list[tuple[float, float]]] = {}  # client -> (when its task was sent, its duration)
    dispatched = False
    try:
        for number, line in enumerate(lines, start=1):
            cells = tuple(cell.strip() for cell in line)
            if number == 1 and tuple(map(str.lower, cells)) in _HEADERS:
                dispatched = len(cells) == len(TIMES)
                continue
            try:
                client, sent, seconds = _task(cells, number, dispatched)
            except ValueError:
                if line:
                    raise DataError(f"{_at(path, lines)}, above 0, got {','.join(line)!r:.80}") from None
            else:
                found.setdefault(client, []).append((sent, seconds))
    except csv.Error as error:
        raise DataError(f"{_at(path, lines)}: {error}") from None
    if not found:
        raise DataError(f"delays: {path}: expected lines of {_FORMS}, got none")
    ordered = {client: [seconds for _, seconds in sorted(own)] for client, own in found.items()}
    return {client: Durations(own[:dispatched], own[dispatched:]) for client, own in ordered.items()}


def _at(path: Path, lines: Foreign) -> str:
    return f"delays: {path}, line {lines.line_num}: expected {_FORMS}"


def _task(cells: Sequence[str], number: int, dispatched: bool) -> tuple[str, float, float]:
    """Return a line's client, when its task was sent, and its duration. ValueError for another form."""
    if dispatched:
        client, sent, answered = cells
        start = _checks.number("dispatched", float(sent))
        return client, start, _checks.number("seconds", float(answered) - start, above=0)
    *name, seconds = cells
    (client,) = name or [""]  # a third column, of rounds or times, is an error
    return client or str(number), number, _checks.number("seconds", float(seconds), above=0)


class Measured(DelayModel):
    """Clients take as long as those of a real federation, in seconds.

    If the file names its clients 0 to n - 1, as many as there are here, client i takes what i took. Otherwise each
    client takes what one of the file's took, always the same one. These are in the order of their means, so if there
    are more of them, or fewer, slow and fast ones are taken in the same proportion.

    A client's first task takes what the real one's first task took, where the file says which it was. Later tasks are
    ``order`` "drawn": one of the later ones each; or "recorded": the same in the same order, and then once more.
    """

    unit = "1 s"

    def __init__(self, times: dict[str, Durations], clients: int, seed: int, order: str = "drawn") -> None:
        self._seed, self._drawn = seed, order == "drawn"
        names = [str(client) for client in range(clients)]
        if times.keys() == set(names):
            self._times = [times[name] for name in names]
        else:
            by_mean = sorted(times.values(), key=lambda own: sum(rest := own.later or own.first) / len(rest))
            places = generator(seed, "delay-order").permutation(clients)
            self._times = [by_mean[int(place) * len(by_mean) // clients] for place in places]

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        own = self._times[client]
        if number < len(own.first):
            return own.first[number]
        later = own.later or own.first
        if self._drawn:
            return later[below(len(later), self._seed, "delay", client, number)]
        return later[(number - len(own.first)) % len(later)]
