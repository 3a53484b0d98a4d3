"""Groups the runs that differ only in their seed. Computes means and deviations over seeds, and compares methods.

Runs with the same seed have the same clients and draw the same delays and batches. So all tests are paired t-tests, at
LEVEL, of the differences between such runs.

Runs that miss their target count, too. All times are cut at the earliest end of such a run, so the tests compare means
of times up to this end (:func:`scores`). Diverged runs count with the worst accuracy, 0.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtr, stdtrit

from fastagg._types import Plain
from fastagg.sim.recipes.tables import ACCURACY, SETTING, Cell, Choice
from fastagg.sim.runs.result import Result

LEVEL = 0.05  # the level of the tests: the probability that a test calls equal methods different
# The measures that a run has only if it reaches its target. By measure: the key of summary.json with the run's end.
ENDS = {"time_to_target": "virtual_time", "uploads_to_target": "uploads"}


@dataclass(frozen=True)
class Group:
    """One line of a table: a method in one setting, with one result per seed.

    ``name``: the recipe's name. ``method``: the method's label. ``choice``: the setting's keys and values. ``measure``:
    the key of summary.json that is compared.
    """

    name: str
    method: str
    choice: Choice
    results: list[Result]
    measure: str = ACCURACY

    @property
    def setting(self) -> str:
        return setting_text(self.choice)

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.method, self.setting)))

    @property
    def states(self) -> str:
        """The number of seeds that did not finish, and the reason, in brackets. Empty: all seeds finished."""
        counts = Counter(r.summary["stopped"] for r in self.results if r.summary["stopped"] != "finished")
        parts = [state if count == len(self.results) == 1 else f"{count} {state}" for state, count in counts.items()]
        return f" ({', '.join(parts)})" if parts else ""

    @property
    def seeds(self) -> list[int]:
        return [result.config.seed for result in self.results]

    @property
    def summaries(self) -> dict[int, Plain]:
        """The contents of summary.json, by seed."""
        return {result.config.seed: result.summary for result in self.results}

    def over(self, key: str, scale: float = 1.0) -> Spread:
        """Return the mean and deviation, over seeds, of ``scale`` times the number ``key`` of summary.json.

        If some seeds reach the target and others miss it, a seed that misses it has the end of its run as its time (or
        number of uploads) to the target. The mean is then a lower bound, and there is no deviation.
        """
        numbers = [(result.summary.get(key), result.summary.get(ENDS.get(key, key))) for result in self.results]
        missing = sum(value is None for value, _ in numbers)
        least = key in ENDS and 0 < missing < len(numbers)
        values = [
            scale * value
            for value in (end if least and own is None else own for own, end in numbers)
            if value is not None
        ]
        deviation = statistics.stdev(values) if len(values) > 1 and not least else None
        return Spread(statistics.fmean(values) if values else None, deviation, missing, least, len(values))


@dataclass(frozen=True)
class Spread:
    """The mean and the sample deviation (n - 1) of ``count`` seeds. With fewer than two seeds there is no deviation.
    ``missing``: the number of seeds without a value. ``least``: whether the mean is a lower bound (no deviation)."""

    mean: float | None
    deviation: float | None = None
    missing: int = 0
    least: bool = False
    count: int = 0

    @property
    def of_all(self) -> float | None:
        return None if self.missing else self.mean


def grouped(runs: Sequence[tuple[Cell, Result | None]]) -> list[Group]:
    """Group the seeds of each method and grid point. Groups are in the order of their first runs. A run without a
    result (None) is left out, but its group is returned, even if the group is empty."""
    cells: dict[tuple[str, str], list[tuple[Cell, Result | None]]] = {}
    for cell, result in runs:
        cells.setdefault((cell.config.name, repr(cell.choice)), []).append((cell, result))
    names = {c.config.name: c.config.label or c.config.name for c, _ in runs if not c.method}
    twice = Counter(names.values())  # recipes with the same label are called by their names
    groups = []
    for (name, _), members in cells.items():
        cell = members[0][0]
        method = cell.method or names[name]
        method = name if twice[method] > 1 else method
        results = [result for _, result in members if result is not None]
        groups.append(Group(name, method, cell.choice, results, cell.measure))
    return groups


def by_setting(groups: Sequence[Group]) -> list[list[Group]]:
    """Return a list for each setting, with the setting's groups."""
    settings: dict[str, list[Group]] = {}
    for group in groups:
        settings.setdefault(repr(group.choice), []).append(group)
    return list(settings.values())


def choice_keys(choices: Iterable[Choice]) -> dict[str, str]:
    """Return all keys of ``choices`` with their short names. A short name is the last part of a key. If two keys have
    the same last part, their short names are the whole keys."""
    shorts = {key: key.rpartition(".")[2] for choice in choices for key, _ in choice}
    return {key: short if list(shorts.values()).count(short) == 1 else key for key, short in shorts.items()}


def setting_text(choice: Choice, part: Choice | None = None) -> str:
    """Return ``choice`` in words. ``part``: the only pairs of ``choice`` to return. None: all pairs."""
    keys = choice_keys([choice])
    return ", ".join(
        str(value) if key == SETTING else f"{keys[key]} {value}" for key, value in (choice if part is None else part)
    )


def name_of(groups: Sequence[Group], baseline: str | None) -> str | None:
    """Return the method whose name, or whose recipe's name, is ``baseline``. None: no method has this name."""
    return next((group.method for group in groups if baseline in (group.method, group.name)), None)


def speedups(groups: Sequence[Group], baseline: str | None) -> list[float | None]:
    """Return how many times sooner than ``baseline`` (a method, or a recipe's name) each group reaches the target.

    The number is the geometric mean over seeds of the baseline's virtual time divided by the group's, at the same grid
    point. The tests of times also compare this mean. None: the baseline is not at this grid point, its unit of time
    differs from the group's, or one of the two missed the target with some seed.
    """
    bases = {repr(group.choice): group for group in reversed(groups) if baseline in (group.method, group.name)}
    ratios: list[float | None] = []
    for group in groups:
        base = bases.get(repr(group.choice), group)
        alike = base.results[0].unit == group.results[0].unit and repr(group.choice) in bases
        reached = all(side.over("time_to_target").of_all for side in (base, group))
        pair = _paired_scores((base, group), "time_to_target") if alike and reached else None
        ratios.append(None if pair is None else math.exp(paired(*pair).mean))
    return ratios


def goal(groups: Sequence[Group]) -> float | None:
    """Return the runs' target. None: the runs have different targets."""
    targets = {result.config.run.target for group in groups for result in group.results}
    return targets.pop() if len(targets) == 1 else None


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, its 95% interval, each pair's difference by seed, and the p-value of the t-test.

    With one pair there is neither an interval nor a p-value. If several pairs all have the same difference, and this is
    not 0, there is no interval, and the p-value is that of a sign test. The p-value of a t-test would be 0.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: Mapping[int, float]
    p: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.mean:+.1f}{interval}"

    @property
    def ratio(self) -> str:
        """The ratio of two numbers as text, with its interval. This must be a difference of the numbers' logarithms."""
        interval = [f"{math.exp(end):.3g}" for end in (self.low, self.high) if end is not None]
        return f"{math.exp(self.mean):.3g}x" + (f" [{', '.join(interval)}]" if interval else "")


def paired(better: Mapping[int, float], worse: Mapping[int, float]) -> Difference:
    """Return the differences ``better`` - ``worse`` for the seeds in both. At least one seed must be in both."""
    pairs = {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}
    mean, count = statistics.fmean(pairs.values()), len(pairs)
    if count == 1:
        return Difference(mean, None, None, pairs)
    error = statistics.stdev(pairs.values()) / math.sqrt(count)
    if error < 1e-9 * abs(mean):  # all differences are equal, except for rounding
        return Difference(mean, None, None, pairs, 2 * 0.5**count)
    half = float(stdtrit(count - 1, 1 - LEVEL / 2)) * error
    p = 2 * float(stdtr(count - 1, -abs(mean) / error)) if error else 1.0
    return Difference(mean, mean - half, mean + half, pairs, p)


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values, corrected for the number of tests (Holm 1979), in the order of ``values``."""
    corrected, largest = [0.0] * len(values), 0.0
    for place, number in enumerate(sorted(range(len(values)), key=lambda number: values[number])):
        corrected[number] = largest = max(largest, min(1.0, (len(values) - place) * values[number]))
    return corrected


@dataclass(frozen=True)
class Contrast:
    """Two methods and their difference. ``more`` is the method with the larger mean, ``fewer`` the other method. ``p``:
    the p-value with Holm's correction. With a single pair of runs the p-value is 1.0."""

    more: str
    fewer: str
    difference: Difference
    p: float = 1.0

    @property
    def is_shown(self) -> bool:
        return self.difference.mean > 0 and self.p <= LEVEL


def contrasts(groups: Sequence[Group], measure: str, baseline: str | None = None, least: int = 2) -> list[Contrast]:
    """Return the differences between all pairs of methods in a setting, with Holm's correction for the number of pairs.
    With ``baseline``, return only the pairs with this method.

    Accuracies are in percent. For times and uploads, the differences are of logarithms, which compares ratios. Pairs
    that share fewer than ``least`` seeds are left out.
    """
    pairs = []
    for pair in itertools.combinations(groups, 2):
        own = _paired_scores(pair, measure)
        if own is not None and baseline in (None, *(g.method for g in pair)) and len(own[0]) >= least:
            there, back = paired(*own), paired(*reversed(own))
            first, second = (group.method for group in pair)
            pairs.append(Contrast(first, second, there) if there.mean >= 0 else Contrast(second, first, back))
    ps = holm([1.0 if contrast.difference.p is None else contrast.difference.p for contrast in pairs])
    return [replace(contrast, p=p) for contrast, p in zip(pairs, ps, strict=True)]


def _paired_scores(pair: Sequence[Group], measure: str) -> list[dict[int, float]] | None:
    """Return the scores of both groups for their common seeds. For times and uploads, return the logarithms of the
    scores above 0. None: the groups have no common seed."""
    sides = scores([group.summaries for group in pair], measure, 100.0)
    if measure in ENDS:
        sides = [{seed: math.log(value) for seed, value in side.items() if value > 0} for side in sides]
    shared = sides[0].keys() & sides[1].keys()
    return [{seed: side[seed] for seed in sorted(shared)} for side in sides] if shared else None


def scores(sides: Sequence[Mapping[int, Plain]], measure: str, scale: float = 1.0) -> list[dict[int, float]]:
    """Return each side's numbers ``measure`` of summary.json by seed, times ``scale``. ``sides``: summaries by seed.

    A time or number of uploads to the target is cut at the earliest end of the runs that miss the target and have not
    diverged. If there is no such run, the latest end of all runs is used. A run that misses the target gets this end.
    For other measures, a diverged run without a number gets 0, and any other run without a number is left out.
    """
    runs, worst = [run for side in sides for run in side.values()], 0.0
    if end := ENDS.get(measure):
        seen = [run[end] for run in runs if run[measure] is None and run["stopped"] != "diverged"]
        worst = min(seen, default=max((run[end] for run in runs), default=0.0))

    def score(run: Plain) -> float | None:
        value = run.get(measure)
        if isinstance(value, float | int):
            return scale * (min(value, worst) if end else value)
        return scale * worst if end or run["stopped"] == "diverged" else None

    return [{seed: value for seed, run in side.items() if (value := score(run)) is not None} for side in sides]
