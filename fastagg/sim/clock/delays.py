"""How long a client takes from dispatch to arrival, in virtual time.

A delay model has a ``unit`` (the meaning of 1.0 of virtual time, for labels) and

    duration(client, number, steps) -> float    the time of the ``number``-th dispatch (from 0) of ``client``, with
                                                ``steps`` local steps
    sending(client, number, down, up) -> float  the time in which its model and its update, of so many bytes, are sent

Draws are keyed by (seed, client, number), see seeds.py. ``state_dict`` returns what a model remembers of earlier
dispatches, for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastagg import _checks
from fastagg._types import State
from fastagg.server.watching import TIMES
from fastagg.sim.clock.view import History
from fastagg.sim.data.files import intervals
from fastagg.sim.functions import parameters
from fastagg.sim.recipes.sections import ExponentialDelay
from fastagg.sim.seeds import below, generator, uniform

# FADAS Table 1: uniform ranges (low, high) of the small, medium and large class, in units of 10 s.
THREE_CLASS_TABLES: dict[str, tuple[tuple[float, float], ...]] = {
    "large": ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0)),
    "mild": ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0)),
}


class DelayModel:
    """A model that remembers nothing: its draws are independent."""

    unit: str
    classes: np.ndarray | None = None  # [clients], 0 small, 1 medium, 2 large; None if there are none

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        raise NotImplementedError

    def sending(self, client: int, number: int, down: int, up: int) -> float:
        return 0.0

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None: ...


class Classes(DelayModel):
    """A client's dispatches take uniform times from the range of its class, in units of 10 s."""

    unit = "10 s"
    classes: np.ndarray
    _seed: int
    _ranges: Sequence[tuple[float, float]]

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        low, high = self._ranges[self.classes[client]]
        return low + (high - low) * uniform(self._seed, "delay", client, number)


class ThreeClass(Classes):
    """Small, medium and large clients (FADAS Section 6, Table 1).

    Each client gets a class once, by the largest component of a Dirichlet([3g, 2g, g]) draw. A smaller ``gamma`` puts
    more clients into the large class. The number of large clients is random: 1 to 10 of 50 with seeds 0 to 19.
    ``counts`` fixes the numbers of small, medium and large clients; the seed then chooses the clients. Each dispatch
    takes a uniform time from the class's range in ``table`` ("large" worst-case or "mild"), in units of 10 s.
    """

    def __init__(
        self, clients: int, seed: int, table: str = "large", gamma: float = 1.0, counts: Sequence[int] | None = None
    ) -> None:
        self._seed, self._ranges = seed, THREE_CLASS_TABLES[table]
        weights = gamma * np.array([3.0, 2.0, 1.0])
        self.classes = generator(seed, "delay-class").dirichlet(weights, size=clients).argmax(axis=1)
        if counts is not None:
            order = generator(seed, "delay-order").permutation(clients)
            self.classes[order] = np.repeat([0, 1, 2], counts)


# FedEcho Table 1, in the same form. It differs from FADAS in the long clients of "mild".
SIZE_TIED_TABLES = {**THREE_CLASS_TABLES, "mild": ((1.0, 2.0), (3.0, 5.0), (10.0, 20.0))}


class SizeTied(Classes):
    """Short, medium and long clients by their number of samples (FedEcho Section 5.1, Table 1).

    The paper says that the class depends on the number of samples, more strongly for a smaller ``gamma``, and that at
    most 10% of the clients are long. This package chose the law. Clients are ordered by ``rank/n + gamma*u``, where
    rank is the place by ``sizes`` (the clients' numbers of samples) and u is uniform in 0..1. The last tenth, rounded
    down, is long. Of the others three in five are short, as in FADAS' Dirichlet means.
    """

    def __init__(self, sizes: Sequence[int], seed: int, table: str = "large", gamma: float = 0.0) -> None:
        self._seed, self._ranges = seed, SIZE_TIED_TABLES[table]
        clients = len(sizes)
        draws = generator(seed, "delay-size").random(clients)
        ranks = np.lexsort((draws, np.asarray(sizes))).argsort()  # clients with the same size are in random order
        order = np.argsort(ranks / clients + gamma * generator(seed, "delay-class").random(clients), kind="stable")
        long = clients // 10
        short = round(0.6 * (clients - long))
        self.classes = np.empty(clients, dtype=np.int64)
        self.classes[order] = np.repeat([0, 1, 2], [short, clients - long - short, long])


# What a client's task takes, from its number, its local steps and a generator of this draw, and perhaps a view.
Law = Callable[..., float]


class Own(DelayModel):
    """What a function of the user's own says, in a ``unit`` of the user's own."""

    def __init__(self, seed: int, law: Law, unit: str, history: History) -> None:
        self.unit, self._seed, self._law, self._history = unit, seed, law, history
        self._views = "view" in parameters(law)

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        more = {"view": self._history.view(client=client)} if self._views else {}
        found = self._law(client, number, steps, generator(self._seed, "delay", client, number), **more)
        return _checks.number("delay: the function's result", found, least=0)


class Drawn(DelayModel):
    """Every dispatch takes a time that ``law`` draws, with its mean (the ACE paper's beta: 1, 5, 20 or 30).

    With its ``spread`` above 0 each of the ``clients`` gets its own mean once. These means are lognormal with this
    deviation of the logarithm, and scaled so that their mean is the law's. Fast clients then answer more often. If all
    clients have the same mean, another value only changes the unit of time.
    """

    unit = "time unit"

    def __init__(self, seed: int, law: ExponentialDelay, clients: int = 0) -> None:
        self._seed, self._law = seed, law
        self.means: np.ndarray | None = None  # [clients]
        if law.spread > 0:
            drawn = np.exp(law.spread * generator(seed, "delay-mean").standard_normal(clients))
            self.means = law.mean * drawn / drawn.mean()

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        mean = self._law.mean if self.means is None else float(self.means[client])
        return float(self._law.draw(generator(self._seed, "delay", client, number), mean))


class Around(DelayModel):
    """A model that changes the times of ``delays``, in the same unit. What has its default changes nothing.

    Args:
        reference: the number of local steps that the times are for. Other numbers of steps take proportional time.
        share: the probability that a client hangs before it trains (AsyncFedED, B.2). The time is uniform from 0 to the
            longest training so far, without hangs ("its maximum hang time is the longest local training time"). The
            paper does not give the law; this package chose the uniform one. So durations depend on the order of
            dispatches, which is the same for the same run.
        speeds: the bytes of models and of updates that are sent in a unit of time; None: at once. A normal factor
            changes the time of both (AsyncFedED, B.2). The paper says only that it is normal. Here it has mean 1;
            values below 0 are 0.
        jitter: the factor's standard deviation.
    """

    def __init__(
        self, delays: DelayModel, seed: int, *, reference: int | None = None, share: float = 0.0,
        speeds: tuple[float | None, float | None] = (None, None), jitter: float = 0.0,
    ) -> None:  # fmt: skip
        self.unit, self.classes, self._delays, self._seed = delays.unit, delays.classes, delays, seed
        self._reference, self._share, self._speeds, self._jitter = reference, share, speeds, jitter
        self._longest = 0.0

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        training = self._delays.duration(client, number, steps)
        if self._reference is not None:
            training = training * steps / self._reference
        total = training
        if self._share:
            rng = generator(self._seed, "suspension", client, number)
            hangs, part = rng.random() < self._share, rng.random()
            # The longest training is read before this one is added, and excludes hangs: it would else keep growing.
            total += part * self._longest if hangs else 0.0
            self._longest = max(self._longest, training)
        return total

    def sending(self, client: int, number: int, down: int, up: int) -> float:
        sent = sum(size / speed for size, speed in zip((down, up), self._speeds, strict=True) if speed is not None)
        if not sent:
            return 0.0
        return sent * max(0.0, float(generator(self._seed, "transmission", client, number).normal(1.0, self._jitter)))

    def state_dict(self) -> State:
        return {"longest": self._longest}

    def load_state_dict(self, state: State) -> None:
        self._longest = state["longest"]


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
