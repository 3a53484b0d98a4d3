"""Durations of a real federation's tasks, from a CSV file, and the delay model that replays them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fastagg.server.watching import TIMES
from fastagg.sim.clock.delays import DelayModel
from fastagg.sim.data.files import intervals
from fastagg.sim.seeds import below, generator


class Durations(NamedTuple):
    """One client's durations, in the order of dispatch: of its first task, for which a real client loads its libraries
    and its data, and of its other tasks."""

    first: list[float]
    later: list[float]


def read_times(path: Path) -> dict[str, Durations]:
    """Read the durations of each client from a CSV file as :func:`fastagg.watch` writes it, of times on one clock, in
    seconds. DataError if it is none."""
    found = intervals(path, "delays", TIMES, what=", answered after it was dispatched")
    ordered = {client: [end - begin for begin, end in sorted(own)] for client, own in found.items()}
    return {client: Durations(own[:1], own[1:]) for client, own in ordered.items()}


class Measured(DelayModel):
    """Clients take as long as those of a real federation, in seconds.

    If the file names its clients 0 to n - 1, as many as there are here, client i takes what i took. Otherwise each
    client takes what one of the file's took, always the same one. These are in the order of their means, so if there
    are more of them, or fewer, slow and fast ones are taken in the same proportion.

    A client's first task takes what the real one's first task took, each later one what a later one took, drawn.
    """

    unit = "1 s"

    def __init__(self, times: dict[str, Durations], clients: int, seed: int) -> None:
        self._seed = seed
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
        return later[below(len(later), self._seed, "delay", client, number)]
