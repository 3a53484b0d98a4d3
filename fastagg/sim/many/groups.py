"""Groups of runs that differ only in their seed: means and deviations over seeds, and claims.

Runs with the same seed have the same clients, delays, batches and arrivals. A claim is about the differences between
such pairs of runs, one method in one setting against another. Its interval is Student's, of 95%. It is "shown" if the
whole interval is on the claimed side of zero, "reversed" if it is on the other side, and a "tie" if it contains zero.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fastagg.sim.one.metrics import reaching
from fastagg.sim.one.result import Result
from fastagg.sim.recipes import configured, tables
from fastagg.sim.recipes.tables import NO_PAPER, SETTING, Cell, Choice, Paper

# Student's t at 97.5% for 1 to 30 degrees of freedom. For more, the normal distribution's 1.96 is close enough.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Verdict = Literal["shown", "tie", "reversed", "one seed"]


@dataclass(frozen=True)
class Group:
    """One line of a table: a method in one setting, with one result per seed.

    ``name`` is the recipe's name. ``choice`` is the setting: keys and values. ``paper`` has the paper's numbers.
    """

    name: str
    method: str
    choice: Choice
    results: list[Result]
    paper: Paper = NO_PAPER

    @property
    def setting(self) -> str:
        return setting_text(self.choice)

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.method, self.setting)))

    def ours(self) -> Spread:
        """Return the number measured here that corresponds to the paper's."""
        values = [result.summary.get(self.paper.measure) for result in self.results]
        return spread([None if value is None else value * self.paper.scale for value in values])

    def over(self, key: str) -> Spread:
        """Return mean and deviation over seeds of a number of summary.json. Seeds without this number are left out."""
        return spread([result.summary[key] for result in self.results])

    def wall_seconds(self) -> dict[str, float]:
        """Return the mean wall seconds of the seeds by activity."""
        walls = [result.summary["wall_seconds"] for result in self.results]
        return {activity: statistics.fmean(wall[activity] for wall in walls) for activity in walls[0]}

    def until(self, field: str = "time") -> Spread:
        """Return over seeds a ``field`` of the first row at the target."""
        rows = (reaching(result.rows, result.config.run.target) for result in self.results)
        return spread([None if row is None else getattr(row, field) for row in rows])


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation (n - 1; None for fewer than two). ``missing`` seeds had no value."""

    mean: float | None
    deviation: float | None = None
    missing: int = 0

    @property
    def of_all(self) -> float | None:
        """The mean, if every seed has a value."""
        return None if self.missing else self.mean


def spread(values: Sequence[float | None]) -> Spread:
    there = [value for value in values if value is not None]
    mean = statistics.fmean(there) if there else None
    return Spread(mean, statistics.stdev(there) if len(there) > 1 else None, len(values) - len(there))


def grouped(runs: Sequence[tuple[Cell, Result]], target: float | None = None) -> list[Group]:
    """Group the seeds of each method and grid point, in the order in which they first occur.

    ``target`` replaces the target of all runs.
    """
    found: dict[tuple[str, str], list[tuple[Cell, Result]]] = {}
    for cell, result in runs:
        own = result if target is None else replace(result, config=configured(result.config, {"run.target": target}))
        found.setdefault((cell.config.name, repr(cell.choice)), []).append((cell, own))
    names = {c.config.name: c.config.label or c.config.name for c, _ in runs if not c.method}
    twice = Counter(names.values())  # two recipes with the same label would look the same
    groups = []
    for (name, _), members in found.items():
        cell = members[0][0]
        method = cell.method or names[name]
        method = name if twice[method] > 1 else method
        groups.append(Group(name, method, cell.choice, [result for _, result in members], cell.paper))
    return groups


def choice_keys(choices: Iterable[Choice]) -> dict[str, str]:
    """Return all keys of ``choices`` with their short names: the last part, or the whole key if two share that part."""
    shorts = {key: key.rpartition(".")[2] for choice in choices for key, _ in choice}
    return {key: short if list(shorts.values()).count(short) == 1 else key for key, short in shorts.items()}


def setting_text(choice: Choice, part: Choice | None = None) -> str:
    """Return ``choice``, or its ``part``, in words."""
    keys = choice_keys([choice])
    return ", ".join(
        str(value) if key == SETTING else f"{keys[key]} {value}" for key, value in (choice if part is None else part)
    )


def name_of(groups: Sequence[Group], baseline: str | None) -> str | None:
    """Return the method of ``baseline``, which may be given as a recipe's name."""
    return next((group.method for group in groups if baseline in (group.method, group.name)), None)


def speedups(groups: Sequence[Group], baseline: str | None) -> list[float | None]:
    """Return how many times sooner than ``baseline`` (a method, or a recipe's name) each group reaches the target.

    This is the baseline's mean virtual time divided by the group's, at the same grid point, as in FADAS' Table 7. It is
    None if one of the two missed the target with some seed, or if their units of virtual time differ.
    """
    bases = {repr(group.choice): group for group in reversed(groups) if baseline in (group.method, group.name)}
    ratios: list[float | None] = []
    for group in groups:
        base, own = bases.get(repr(group.choice)), group.until().of_all
        alike = base is not None and base.results[0].unit == group.results[0].unit
        theirs = base.until().of_all if base is not None and alike else None
        ratios.append(theirs / own if theirs is not None and own else None)
    return ratios


def goal(groups: Sequence[Group]) -> float | None:
    """Return the runs' target, if all have the same."""
    targets = {result.config.run.target for group in groups for result in group.results}
    return targets.pop() if len(targets) == 1 else None


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, its 95% interval (None with one pair), and each pair's difference by seed."""

    mean: float
    low: float | None
    high: float | None
    pairs: Mapping[int, float]

    @property
    def verdict(self) -> Verdict:
        if self.low is None or self.high is None:
            return "one seed"
        return "shown" if self.low > 0 else "reversed" if self.high < 0 else "tie"

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.mean:+.1f}{interval}"


@dataclass(frozen=True)
class Judged:
    """A claim and the runs' result. ``difference`` is better minus worse; if less is better, worse minus better."""

    claim: tables.Claim
    difference: Difference


def paired(better: Mapping[int, float], worse: Mapping[int, float]) -> Difference:
    """Return the differences for the seeds that both have, at least one."""
    pairs = {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}
    mean, count = statistics.fmean(pairs.values()), len(pairs)
    if count == 1:
        return Difference(mean, None, None, pairs)
    quantile = STUDENT[count - 2] if count - 2 < len(STUDENT) else 1.96
    half = quantile * statistics.stdev(pairs.values()) / math.sqrt(count)
    return Difference(mean, mean - half, mean + half, pairs)


def judged(names: Iterable[str], groups: Sequence[Group]) -> list[Judged]:
    """Return the claims of the tables in ``names`` for which ``groups`` have runs."""
    counts = Counter(group.name for group in groups)  # more than one group: the user runs a grid over the table
    runs = {group.name: group for group in groups if counts[group.name] == 1}
    found = []
    for table in (tables.load(name) for name in names if tables.is_table(name)):
        own = {(cell.method, cell.setting): cell.config.name for cell in table.cells}
        for claim in table.claims:
            sides = [runs[own[side]] for side in (claim.better, claim.worse) if own[side] in runs]
            scores = [_scores(side, claim) for side in (reversed(sides) if claim.less else sides)]
            if len(scores) == 2 and scores[0].keys() & scores[1].keys():
                found.append(Judged(claim, paired(*scores)))
    return found


def _scores(group: Group, claim: tables.Claim) -> dict[int, float]:
    values = {result.config.seed: result.summary.get(claim.measure) for result in group.results}
    return {seed: value * claim.scale for seed, value in values.items() if isinstance(value, float | int)}
