"""Claims about a table: one method in one setting compared with another, seed by seed.

Runs with the same seed have the same clients, delays, batches and arrivals. A claim is about the differences between
such pairs of runs. Its interval is Student's, of 95%. A claim is "shown" if the whole interval is on the claimed side
of zero, "reversed" if the whole interval is on the other side, and a "tie" if the interval contains zero.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fastagg.sim.many.groups import Group
from fastagg.sim.recipes import tables

# Student's t at 97.5% for 1 to 30 degrees of freedom. For more, the normal distribution's 1.96 is close enough.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

Verdict = Literal["shown", "tie", "reversed", "one seed"]


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
        if self.low > 0:
            return "shown"
        return "reversed" if self.high < 0 else "tie"

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.mean:+.1f}{interval}"


@dataclass(frozen=True)
class Judged:
    """A claim and the runs' result. ``difference`` is better minus worse; if less is better, worse minus better."""

    claim: tables.Claim
    table: str
    difference: Difference


def paired(better: Mapping[int, float], worse: Mapping[int, float]) -> Difference | None:
    """Return the differences for the seeds that both have; None if there are none."""
    pairs = {seed: better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())}
    if not pairs:
        return None
    values = list(pairs.values())
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Difference(mean, None, None, pairs)
    degrees = len(values) - 1
    half = (STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96) * statistics.stdev(values)
    half /= math.sqrt(len(values))
    return Difference(mean, mean - half, mean + half, pairs)


def judged(names: Iterable[str], groups: Sequence[Group]) -> list[Judged]:
    """Return the claims of the tables in ``names`` for which ``groups`` have runs."""
    found = []
    for name in names:
        if not tables.is_table(name):
            continue
        table = tables.load(name)
        own = {(cell.method, cell.setting): cell.config.name for cell in table.cells}
        counts = Counter(group.name for group in groups)  # more than one group: the user runs a grid over the table
        runs = {group.name: group for group in groups if counts[group.name] == 1}
        for claim in table.claims:
            sides = [runs.get(own[side]) for side in (claim.better, claim.worse)]
            if sides[0] is None or sides[1] is None:
                continue
            scores = [_scores(side, claim) for side in sides if side is not None]
            difference = paired(*(scores if not claim.less else reversed(scores)))
            if difference is not None:
                found.append(Judged(claim, table.name, difference))
    return found


def _scores(group: Group, claim: tables.Claim) -> dict[int, float]:
    scores = {}
    for result in group.results:
        value = result.summary.get(claim.measure)
        if isinstance(value, float | int):
            scores[result.config.seed] = value * claim.scale
    return scores
