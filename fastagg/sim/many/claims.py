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
