"""Runs that differ in nothing but their seed, and what is said about them: means and deviations over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastagg.sim.metrics import Row, reaching
from fastagg.sim.result import Result
from fastagg.sim.sweep import Cell, Choice


@dataclass(frozen=True)
class Group:
    """One line of a table: a method at one point of the grid, its results one per seed.

    ``method`` is its label without the grid's values, ``label`` the one with them.
    """

    name: str
    method: str
    label: str
    choice: Choice
    results: list[Result]

    def over(self, key: str) -> Spread:
        """Return mean and deviation over seeds of a number of summary.json; those without one are left out."""
        return spread([result.summary[key] for result in self.results])

    def wall_seconds(self) -> dict[str, float]:
        """Return the mean wall seconds of the seeds by activity."""
        walls = [result.summary["wall_seconds"] for result in self.results]
        return {activity: statistics.fmean(wall[activity] for wall in walls) for activity in walls[0]}

    def reached(self, target: float | None) -> list[Row | None]:
        """Return for each seed the first evaluation at the target, by default each run's own."""
        return [reaching(r.rows, r.config.run.target if target is None else target) for r in self.results]


@dataclass(frozen=True)
class Spread:
    """Mean and sample deviation (n - 1; None for fewer than two) of ``count`` values, ``missing`` had none."""

    mean: float | None
    deviation: float | None
    count: int
    missing: int


def spread(values: Sequence[float | None]) -> Spread:
    there = [value for value in values if value is not None]
    mean = statistics.fmean(there) if there else None
    return Spread(mean, statistics.stdev(there) if len(there) > 1 else None, len(there), len(values) - len(there))


def grouped(runs: Sequence[tuple[Cell, Result]]) -> list[Group]:
    """Put the seeds of each method and grid point together, in the order in which they first come."""
    found: dict[tuple[str, str], list[tuple[Cell, Result]]] = {}
    for cell, result in runs:
        found.setdefault((cell.config.name, repr(cell.choice)), []).append((cell, result))
    names = {cell.config.name: cell.config.label or cell.config.name for cell, _ in runs}
    # Methods with the same label would look the same: those are called by their names.
    methods = {n: label if list(names.values()).count(label) == 1 else n for n, label in names.items()}
    keys = short_keys(runs[0][0].choice) if runs else {}
    groups = []
    for members in found.values():
        cell = members[0][0]
        method = methods[cell.config.name]
        parts = [f"{keys[key]} {value}" for key, value in cell.choice]
        label = ", ".join(([method] if len(methods) > 1 or not parts else []) + parts)
        groups.append(Group(cell.config.name, method, label, cell.choice, [result for _, result in members]))
    return groups


def short_keys(choice: Choice) -> dict[str, str]:
    """Return each dotted key's last part, or all of it where two keys share the last part."""
    last = [key.rpartition(".")[2] for key, _ in choice]
    return {key: short if last.count(short) == 1 else key for (key, _), short in zip(choice, last, strict=True)}


def speedups(groups: Sequence[Group], baseline: str | None, target: float | None) -> list[float | None]:
    """Return how many times sooner than ``baseline`` (a recipe's name or label) each group reaches the target.

    The baseline's mean virtual time over the group's, at the same grid point; None where one of the two missed the
    target with some seed, or their virtual times have other units. As in FADAS' Table 7.
    """
    if baseline is None:
        return [None] * len(groups)
    times: dict[tuple[str, str], Any] = {}
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
