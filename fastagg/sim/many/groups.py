"""Groups of runs that differ only in their seed, with means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastagg.sim.one.metrics import Row, reaching
from fastagg.sim.one.result import Result
from fastagg.sim.recipes.tables import NO_PAPER, SETTING, Cell, Choice, Paper


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

    def reached(self, target: float | None) -> list[Row | None]:
        """Return for each seed the first evaluation at the target. The default target is each run's own."""
        return [reaching(r.rows, r.config.run.target if target is None else target) for r in self.results]


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation (n - 1; None for fewer than two) of ``count`` values. ``missing`` seeds had no
    value."""

    mean: float | None
    deviation: float | None
    count: int
    missing: int


def spread(values: Sequence[float | None]) -> Spread:
    there = [value for value in values if value is not None]
    mean = statistics.fmean(there) if there else None
    return Spread(mean, statistics.stdev(there) if len(there) > 1 else None, len(there), len(values) - len(there))


def grouped(runs: Sequence[tuple[Cell, Result]]) -> list[Group]:
    """Group the seeds of each method and grid point, in the order in which they first occur."""
    found: dict[tuple[str, str], list[tuple[Cell, Result]]] = {}
    for cell, result in runs:
        found.setdefault((cell.config.name, repr(cell.choice)), []).append((cell, result))
    names = {c.config.name: c.config.label or c.config.name for c, _ in runs if not c.method}
    groups = []
    for members in found.values():
        cell = members[0][0]
        method = cell.method or names[cell.config.name]
        if list(names.values()).count(method) > 1:  # two recipes with the same label would look the same
            method = cell.config.name
        groups.append(Group(cell.config.name, method, cell.choice, [result for _, result in members], cell.paper))
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


def speedups(groups: Sequence[Group], baseline: str | None, target: float | None) -> list[float | None]:
    """Return how many times sooner than ``baseline`` (a method, or a recipe's name) each group reaches the target.

    This is the baseline's mean virtual time divided by the group's, at the same grid point, as in FADAS' Table 7. It is
    None if one of the two missed the target with some seed, or if their units of virtual time differ.
    """
    if baseline is None:
        return [None] * len(groups)
    times: dict[tuple[str, str], tuple[float | None, str]] = {}
    for group in groups:
        rows = group.reached(target)
        whole = all(row is not None for row in rows)
        mean = statistics.fmean([row.time for row in rows if row is not None]) if whole else None
        entry = (mean, group.results[0].unit)
        times[group.name, repr(group.choice)] = entry
        times.setdefault((group.method, repr(group.choice)), entry)
    ratios: list[float | None] = []
    for group in groups:
        mean, unit = times[group.name, repr(group.choice)]
        base, base_unit = times.get((baseline, repr(group.choice)), (None, ""))
        ratios.append(base / mean if base is not None and mean and unit == base_unit else None)
    return ratios
