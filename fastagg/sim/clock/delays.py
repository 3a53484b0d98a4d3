"""The delay laws: how long a client's task takes, in virtual time or in server versions. Each law is a class.

A class has everything about its law: the name, the keys in a recipe with their checks, the formula (docstring), and the
function that draws. Recipes, runs and pages take all laws from LAWS. To add a law, add a class to this module and a
line to the test of formulas (tests/sim/test_delays.py). The test fails if a class is incomplete.

Draws for tasks are keyed by (seed, client, number of the task), see seeds.py. Importing this module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fastagg import _checks
from fastagg._types import State
from fastagg.sim.data.files import beside_data, intervals
from fastagg.sim.data.sections import OpenSection, Section, Share, one_of, tag_of
from fastagg.sim.functions import parameters
from fastagg.sim.seeds import below, generator, uniform

if TYPE_CHECKING:
    from fastagg.sim.clock.view import History

# Takes a client, the number of its task (from 0) and the number of local steps. Returns the task's virtual time.
Duration = Callable[[int, int, int], float]
LAWS: dict[str, type[Delay]] = {}  # the laws by their names in recipes


class Population(NamedTuple):
    """The clients of a run, for a delay law.

    ``sizes``: each client's number of samples. ``seed``: the run's seed. ``folder``: the folder of the data, which may
    have a law's file. ``function``: the user's own law. ``history``: the clients' history, for the user's own law.
    """

    sizes: Sequence[int]
    seed: int
    folder: str | None = None
    function: Callable[..., float] | None = None
    history: History | None = None


class Delay(Section):
    """Base of all laws. A subclass with a ``name`` is a law, and is added to LAWS."""

    in_versions: ClassVar[bool] = False  # whether delays are in server versions, not in virtual time

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        if "name" in cls.model_fields:
            LAWS[tag_of(cls)] = cls

    def check(self, clients: int) -> None:
        """Raise ValueError if the law does not fit this number of clients."""


class TimedDelay(Delay):
    """The settings of every delay law in virtual time.

    ``steps``: the number of local steps to which the law's times refer. A task of K steps takes K / steps of the law's
    time. None: the number of steps has no effect. ``speed``: bytes per unit of time from the server to a client.
    ``up``: bytes per unit of time from a client to the server. None: sending takes no time. ``jitter``: a sending time
    is multiplied by a normal random number with mean 1 and this standard deviation, or by 0 if the number is negative.
    ``suspension``: the probability that a client hangs before it trains. A hang takes at most as long as the longest
    training so far. ``counting``: with "arrival" the model is sent after each answer, with "authors" (FADAS) only when
    its version has changed or no task is open.
    """

    steps: PositiveInt | None = None
    counting: Literal["arrival", "authors"] = "arrival"
    speed: PositiveFloat | None = None
    up: PositiveFloat | None = None
    jitter: float = Field(0.1, ge=0)
    suspension: Share = 0.0

    if TYPE_CHECKING:  # every law defines these
        name: str

        @property
        def unit(self) -> str:
            """The unit of virtual time, such as "10 s"."""

        def durations(self, population: Population) -> Duration:
            """Return the function that draws the times of this population's tasks."""

    def classes(self, population: Population) -> np.ndarray | None:
        """Return each client's class of delays: 0 small, 1 medium, 2 large. None: the law has no classes."""
        return None


class ClassDelay(TimedDelay):
    """Each client has a class: small, medium or large. The time of a task is uniform in the range of this class.
    ``tables`` has the ranges (low, high) of the three classes in this order. ``table`` selects one of the tables."""

    unit: ClassVar[str] = "10 s"
    tables: ClassVar[dict[str, tuple[tuple[float, float], ...]]]
    table: Literal["large", "mild"] = "large"

    def durations(self, population: Population) -> Duration:
        classes, ranges = self.classes(population), self.tables[self.table]
        assert classes is not None

        def duration(client: int, number: int, steps: int) -> float:
            low, high = ranges[classes[client]]
            return low + (high - low) * uniform(population.seed, "delay", client, number)

        return duration


class ThreeClassDelay(ClassDelay):
    """Delays of FADAS' Table 1, in units of 10 s. With ``table`` "large", times in the classes small, medium and large
    are 1 to 2, 3 to 5, and 50 to 80. With "mild", times in the class large are 5 to 8.

    For each client, shares of small, medium and large are drawn from Dirichlet([3g, 2g, g]), with g = ``gamma``. The
    client gets the class with the largest share. A smaller ``gamma`` puts more clients into the class large. With gamma
    1 and seeds 0 to 19, this class has 1 to 10 of 50 clients. ``counts``: the numbers of small, medium and large
    clients, in place of ``gamma``. The clients of each class are then chosen at random.
    """

    name: Literal["three-class"]
    gamma: PositiveFloat = 1.0
    counts: list[Annotated[int, Field(ge=0)]] | None = None
    tables: ClassVar = {
        "large": ((1.0, 2.0), (3.0, 5.0), (50.0, 80.0)),
        "mild": ((1.0, 2.0), (3.0, 5.0), (5.0, 8.0)),
    }

    @model_validator(mode="after")
    def _three_counts(self) -> ThreeClassDelay:
        if self.counts is not None and len(self.counts) != 3:
            raise ValueError(f"counts are of small, medium and large clients, three numbers, got {self.counts}")
        return self

    def check(self, clients: int) -> None:
        if self.counts is not None and sum(self.counts) != clients:
            raise ValueError(f"delay.counts are {sum(self.counts)} clients, not the data's {clients}")

    def classes(self, population: Population) -> np.ndarray:
        clients, seed = len(population.sizes), population.seed
        weights = self.gamma * np.array([3.0, 2.0, 1.0])
        classes: np.ndarray = generator(seed, "delay-class").dirichlet(weights, size=clients).argmax(axis=1)
        if self.counts is not None:
            classes[generator(seed, "delay-order").permutation(clients)] = np.repeat([0, 1, 2], self.counts)
        return classes


class SizeTiedDelay(ClassDelay):
    """Delays of FedEcho's Table 1. Clients with more samples are in slower classes. A larger ``gamma`` makes this
    dependence weaker. ``table``: as in ThreeClassDelay, but with "mild", times in the class large are 10 to 20.

    The paper says that the class depends on the number of samples, more strongly for a smaller ``gamma``, and that at
    most 10% of the clients are in the class large. The formula is this package's choice. The n clients are sorted by
    ``rank/n + gamma*u``, where rank is a client's place by the number of samples, and u is uniform in 0..1. The last
    tenth, rounded down, is the class large. Of the others, the first three fifths are small, and the rest medium.
    """

    name: Literal["size-tied"]
    gamma: float = Field(0.0, ge=0)
    tables: ClassVar = {**ThreeClassDelay.tables, "mild": ((1.0, 2.0), (3.0, 5.0), (10.0, 20.0))}

    def classes(self, population: Population) -> np.ndarray:
        seed, clients = population.seed, len(population.sizes)
        draws = generator(seed, "delay-size").random(clients)
        ranks = np.lexsort((draws, np.asarray(population.sizes))).argsort()  # equal sizes are in random order
        noise = generator(seed, "delay-class").random(clients)
        order = np.argsort(ranks / clients + self.gamma * noise, kind="stable")
        long = clients // 10
        short = round(0.6 * (clients - long))
        classes = np.empty(clients, dtype=np.int64)
        classes[order] = np.repeat([0, 1, 2], [short, clients - long - short, long])
        return classes


class DrawnDelay(TimedDelay):
    """The time of every task is drawn from a distribution with the client's mean.

    ``mean``: the mean of the clients' means (the ACE paper's beta: 1, 5, 20 or 30). The clients' means are lognormal.
    ``spread``: the standard deviation of the logarithms of the clients' means. With a ``spread`` of 0 all clients have
    the same mean, so another ``mean`` only changes the unit of time.
    """

    unit: ClassVar[str] = "time unit"
    mean: PositiveFloat = 5.0
    spread: float = Field(0.0, ge=0)

    if TYPE_CHECKING:

        def draw(self, rng: np.random.Generator, mean: float) -> float:
            """Draw the time of a task of a client with this mean."""

    def means(self, population: Population) -> np.ndarray:
        """Return each client's mean."""
        clients = len(population.sizes)
        if not self.spread:
            return np.full(clients, self.mean)
        drawn = np.exp(self.spread * generator(population.seed, "delay-mean").standard_normal(clients))
        means: np.ndarray = self.mean * drawn / drawn.mean()
        return means

    def durations(self, population: Population) -> Duration:
        means = self.means(population).tolist()
        return lambda client, number, steps: float(
            self.draw(generator(population.seed, "delay", client, number), means[client])
        )


class ExponentialDelay(DrawnDelay):
    """P(time > t) = exp(-t / mean), with the client's mean."""

    name: Literal["exponential"]

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        return rng.exponential(mean)


class LognormalDelay(DrawnDelay):
    """The logarithm of a time is normal with the standard deviation ``sigma``. The times have the client's mean."""

    name: Literal["lognormal"]
    sigma: PositiveFloat = 1.0

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        return mean * math.exp(self.sigma * rng.standard_normal() - 0.5 * self.sigma**2)


class ParetoDelay(DrawnDelay):
    """P(time > t) = (a / t)**``shape`` for t above a = mean * (shape - 1) / shape, with the client's mean."""

    name: Literal["pareto"]
    shape: float = Field(2.5, gt=1)

    def draw(self, rng: np.random.Generator, mean: float) -> float:
        return mean * (self.shape - 1) / self.shape * (1.0 + rng.pareto(self.shape))


class MeasuredDelay(TimedDelay):
    """Times of a real federation's tasks, in seconds, from a CSV ``file`` as :func:`fastagg.watch` writes it.

    If the file's clients are named 0 to n - 1, and the run has n clients, client i has the times of the file's client
    i. Otherwise each client has the times of one client of the file. The file's clients are chosen evenly in the order
    of their mean times without the first time, so that the run has the file's proportion of slow and fast clients.

    A client's first task takes the first time, because a real client then loads its libraries and its data. Each later
    task takes one of the later times, drawn at random. If there is only one time, all tasks take this time.
    """

    unit: ClassVar[str] = "1 s"
    name: Literal["measured"]
    file: str

    def durations(self, population: Population) -> Duration:
        times, clients = read_times(beside_data(self.file, population.folder)), len(population.sizes)
        names = [str(client) for client in range(clients)]
        if times.keys() != set(names):
            by_mean = sorted(times, key=lambda name: float(np.mean(times[name][1:] or times[name])))
            places = generator(population.seed, "delay-order").permutation(clients)
            names = [by_mean[int(place) * len(by_mean) // clients] for place in places]

        def duration(client: int, number: int, steps: int) -> float:
            first, *later = times[names[client]]
            later = later or [first]
            return first if number == 0 else later[below(len(later), population.seed, "delay", client, number)]

        return duration


def read_times(path: Any) -> dict[str, list[float]]:
    """Read a file for MeasuredDelay. Return each client's times in seconds, in the order of dispatch. DataError: the
    file cannot be read, or a line is invalid."""
    from fastagg.server.watching import TIMES

    spans = intervals(path, "delays", TIMES, what=", answered after it was dispatched")
    return {client: [end - begin for begin, end in sorted(tasks)] for client, tasks in spans.items()}


class OwnDelay(TimedDelay, OpenSection):
    """Your own law. ``name`` is "module:function". This function takes (client, number of the client's task, local
    steps, NumPy generator) and returns the task's time in ``unit``. If the function has an argument ``view``, it also
    gets the client's history, a fastagg.sim.clock.view.View.

    Other keys are arguments of the function. The name "given" stands for a function that is passed to run().
    """

    name: str
    unit: str = "time unit"

    def durations(self, population: Population) -> Duration:
        law, history, seed = population.function, population.history, population.seed
        assert law is not None and history is not None
        views = "view" in parameters(law)

        def duration(client: int, number: int, steps: int) -> float:
            more = {"view": history.view(client=client)} if views else {}
            time = law(client, number, steps, generator(seed, "delay", client, number), **more)
            return _checks.number("delay: the function's result", time, least=0)

        return duration


class VersionDelay(Delay):
    """An update that arrives at version t was trained on version t - tau. With ``tau_max``, tau is uniform in
    0..``tau_max``, both included (FedAsync). With ``mean``, tau is exponential (ACE). Draws above five times the mean
    of the exponential distribution are lowered to this limit. ``mean`` is the mean after this change. tau is then
    randomly rounded up or down, which keeps the mean.

    The ACE paper's beta, the mean, has an effect only if delays are in versions. With exponential *times* and the same
    mean for all clients, another mean would only change the unit of time.
    """

    in_versions: ClassVar[bool] = True
    name: Literal["version"]
    tau_max: int | None = Field(None, ge=0)
    mean: PositiveFloat | None = None

    @model_validator(mode="after")
    def _one_source(self) -> VersionDelay:
        if (self.tau_max is None) == (self.mean is None):
            raise ValueError("give tau_max or mean, one of the two")
        return self

    def taus(self, seed: int) -> tuple[int, Callable[[int], int]]:
        """Return the largest tau, and a function that draws the tau of an arrival by its number (from 0)."""
        if self.mean is None:
            longest = self.tau_max or 0
            return longest, lambda arrival: below(longest + 1, seed, "tau", arrival)
        scale = self.mean / -math.expm1(-5)  # the mean without the limit 5 * scale, which lowers it by the share e^-5

        def tau(arrival: int) -> int:
            rng = generator(seed, "tau", arrival)
            return math.floor(min(rng.exponential(scale), 5 * scale) + rng.random())

        return math.ceil(5 * scale), tau


if TYPE_CHECKING:
    AnyDelay = TimedDelay | VersionDelay
else:
    AnyDelay = one_of(*LAWS.values())


class Times:
    """Computes the times of a run's tasks from a law and the settings that every law has (:class:`TimedDelay`).

    The time of a hang is uniform from 0 to the longest training so far, without hangs. The AsyncFedED paper (B.2) says
    "its maximum hang time is the longest local training time". The uniform distribution is this package's choice. With
    hangs, the times of tasks depend on the order of dispatches, which is the same whenever a run is repeated. The
    random factor of a sending time is normal with mean 1, as in the paper. Values below 0 are replaced by 0.
    """

    def __init__(self, law: TimedDelay, population: Population) -> None:
        self.unit, self.classes = law.unit, law.classes(population)
        self._law, self._seed, self._durations = law, population.seed, law.durations(population)
        self._longest = 0.0

    def duration(self, client: int, number: int, steps: int = 1) -> float:
        """Return the time of a client's ``number``-th task (from 0) with ``steps`` local steps, without sending."""
        training = self._durations(client, number, steps)
        if self._law.steps is not None:
            training = training * steps / self._law.steps
        if not self._law.suspension:
            return training
        rng = generator(self._seed, "suspension", client, number)
        hangs, part = rng.random() < self._law.suspension, rng.random()
        # `_longest` excludes hangs, and is read before this task is added. Otherwise `_longest` would keep growing.
        total = training + (part * self._longest if hangs else 0.0)
        self._longest = max(self._longest, training)
        return total

    def sending(self, client: int, number: int, down: int, up: int) -> float:
        """Return the time to send a task's model (``down`` bytes) and its update (``up`` bytes)."""
        ways = (down, self._law.speed), (up, self._law.up)
        sent = sum(size / speed for size, speed in ways if speed is not None)
        if not sent:
            return 0.0
        factor = generator(self._seed, "transmission", client, number).normal(1.0, self._law.jitter)
        return sent * max(0.0, float(factor))

    def state_dict(self) -> State:
        return {"longest": self._longest}

    def load_state_dict(self, state: State) -> None:
        self._longest = state["longest"]
