"""What a comparison showed: sentences that name who wins and who loses, tables, and notes of the runs.

The terminal and ``report.html`` show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastagg.sheet import Sheet
from fastagg.sim.many.claims import Judged
from fastagg.sim.many.groups import Group, goal, name_of, speedups
from fastagg.sim.show.sweep_tables import claims_table, pivot, table, time_table


@dataclass(frozen=True)
class Findings:
    """``sentences``: the verdict first. ``sheets``: the tables of results. ``times``: where the time went. ``notes``:
    what the runs said of their clients."""

    sentences: list[str]
    sheets: list[Sheet]
    times: Sheet
    notes: list[str] = field(default_factory=list)


def find(groups: Sequence[Group], claims: Sequence[Judged] = (), baseline: str | None = None) -> Findings:
    """Return what ``groups`` showed. There are sentences if several methods are compared in one setting."""
    sheets = [pivot(groups), table(groups, baseline), claims_table(claims) if claims else None]
    alike = len({repr(group.choice) for group in groups}) == 1
    return Findings(
        sentences(groups, baseline) if alike and len(groups) > 1 else [],
        [sheet for sheet in sheets if sheet is not None],
        time_table([(group.label, group.wall_seconds()) for group in groups]),
        list(dict.fromkeys(note for group in groups for one in group.results for note in one.summary.get("notes", []))),
    )


def verdict(groups: Sequence[Group], baseline: str | None) -> str:
    """Return who reaches the target soonest, and how many times sooner than ``baseline``; "" if nobody does."""
    ratios = dict(zip((group.method for group in groups), speedups(groups, baseline), strict=True))
    times = {group.method: time for group in groups if (time := group.until().of_all) is not None}
    if not times or len({result.unit for group in groups for result in group.results}) > 1:
        return ""
    base, best, target = name_of(groups, baseline), min(times, key=lambda name: times[name]), goal(groups)
    reaches, ratio = f"{best} reaches {'its target' if target is None else f'{target:.0%}'}", ratios[best]
    if base is not None and base not in times:
        return f"{reaches}, {base} does not"
    sooner = "first" if base in (best, None) or ratio is None else f"{factor(ratio)} sooner than {base}"
    return f"{reaches} {sooner}"


def sentences(groups: Sequence[Group], baseline: str | None) -> list[str]:
    """Return the verdict, why the baseline is slow, and whether accuracies at the end differ by more than seeds do."""
    lines, base = [], name_of(groups, baseline)
    if text := verdict(groups, baseline):
        lines.append(f"{text}.")
        if any(g.method == base and g.results[0].config.participation.rule == "round" for g in groups):
            lines.append(f"{base} waits in every round for the slowest client.")
    ends = {group.method: group.over("last5_accuracy_mean") for group in groups}
    last, *_, first = sorted(ends, key=lambda method: ends[method].mean or 0.0)
    gap = 100 * ((ends[first].mean or 0.0) - (ends[last].mean or 0.0))
    noise = 100 * max(ends[first].deviation or 0.0, ends[last].deviation or 0.0)
    seeds = f": {'more' if gap > noise else 'not more'} than the seeds differ among themselves ({noise:.1f})"
    end = f"Accuracy at the end: {first} is first and {last} last, {gap:.1f} points below"
    return [*lines, f"{end}{seeds if noise else ''}."]


def factor(ratio: float) -> str:
    """Return a ratio in words: "41 times", "1.8 times"."""
    return f"{ratio:.0f} times" if ratio >= 9.5 else f"{ratio:.1f} times"
