"""What a comparison showed: sentences that name who wins and who loses, tables, and notes of the runs.

The terminal and ``report.html`` show the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fastagg.sheet import Sheet
from fastagg.sim.many.claims import Judged
from fastagg.sim.many.groups import Group, name_of, speedups, spread
from fastagg.sim.one.metrics import duration
from fastagg.sim.show.sweep_tables import claims_table, pivot, table, time_table


@dataclass(frozen=True)
class Findings:
    """``sentences``: the verdict first. ``sheets``: the tables of results. ``times``: where the time went. ``notes``:
    what the runs said of their clients."""

    sentences: list[str]
    sheets: list[Sheet]
    times: Sheet
    notes: list[str] = field(default_factory=list)


def find(
    groups: Sequence[Group], claims: Sequence[Judged] = (), target: float | None = None, baseline: str | None = None
) -> Findings:
    """Return what ``groups`` showed. There are sentences if several methods are compared in one setting."""
    sheets = [pivot(groups), table(groups, target, baseline), claims_table(claims) if claims else None]
    alike = len({repr(group.choice) for group in groups}) == 1
    return Findings(
        sentences(groups, target, baseline) if alike and len(groups) > 1 else [],
        [sheet for sheet in sheets if sheet is not None],
        time_table([(group.label, group.wall_seconds()) for group in groups]),
        list(dict.fromkeys(note for group in groups for one in group.results for note in one.summary.get("notes", []))),
    )


def verdict(groups: Sequence[Group], target: float | None, baseline: str | None) -> str:
    """Return who reaches the target soonest, and how many times sooner than ``baseline``; "" if nobody does."""
    ratios = {group.method: ratio for group, ratio in zip(groups, speedups(groups, baseline, target), strict=True)}
    times = {group.method: mean for group in groups if (mean := mean_time(group, target)) is not None}
    if not times or len({result.unit for group in groups for result in group.results}) > 1:
        return ""
    best, base = min(times, key=lambda method: times[method]), name_of(groups, baseline)
    goal, ratio = _goal(groups, target), ratios[best]
    if base is not None and base not in times:
        return f"{best} reaches {goal}, {base} does not"
    if base in (best, None) or ratio is None:
        return f"{best} reaches {goal} first"
    return f"{best} reaches {goal} {factor(ratio)} sooner than {base}"


def sentences(groups: Sequence[Group], target: float | None, baseline: str | None) -> list[str]:
    """Return the verdict and what it costs, a sentence each."""
    lines, goal, base = [], _goal(groups, target), name_of(groups, baseline)
    times = {group.method: (mean_time(group, target), group.results[0].unit) for group in groups}
    if text := verdict(groups, target, baseline):
        known = sorted((time, method, unit) for method, (time, unit) in times.items() if time is not None)
        took = ", ".join(f"{method} {duration(time, unit)}" for time, method, unit in known)
        slow = next((g for g in groups if g.method == base and g.results[0].config.participation.rule == "round"), None)
        why = f" {base} waits in every round for the slowest client." if slow is not None else ""
        lines += [f"{text}.", f"Virtual time until {goal}: {took}.{why}"]
    if missed := [method for method, (time, _) in times.items() if time is None]:
        lines.append(f"{', '.join(missed)} did not reach {goal} with every seed.")
    uploads = {}
    for group in groups:
        found = spread([None if row is None else float(row.uploads) for row in group.reached(target)])
        if found.mean is not None and not found.missing:
            uploads[group.method] = found.mean
    if uploads:
        order = sorted(uploads, key=lambda method: uploads[method])
        counts = ", ".join(f"{method} {uploads[method]:,.0f}" for method in order)
        lines.append(f"The clients' work, in updates until {goal}: {counts}. {order[-1]} needs the most.")
    final = sorted(groups, key=lambda group: group.over("last5_accuracy_mean").mean or 0.0)
    last, first = final[0].over("last5_accuracy_mean"), final[-1].over("last5_accuracy_mean")
    gap, noise = 100 * ((first.mean or 0.0) - (last.mean or 0.0)), 100 * max(first.deviation or 0, last.deviation or 0)
    seeds = f": {'more' if gap > noise else 'not more'} than the seeds differ among themselves ({noise:.1f})"
    lines.append(
        f"Accuracy at the end: {final[-1].method} is first and {final[0].method} last, {gap:.1f} points below"
        + (f"{seeds}." if noise else ".")
    )
    costs = []
    for group in groups:
        wall, received = group.wall_seconds(), group.over("uploads").mean or 1.0
        costs.append(f"{group.method} {1e3 * wall['server'] / received:.2f} ms ({wall['server'] / wall['total']:.0%})")
    lines.append(f"The server's own time per update, and its share of the run: {', '.join(costs)}.")
    return lines


def factor(ratio: float) -> str:
    """Return a ratio in words: "41 times", "1.8 times"."""
    return f"{ratio:.0f} times" if ratio >= 9.5 else f"{ratio:.1f} times"


def mean_time(group: Group, target: float | None) -> float | None:
    """Return the mean virtual time to the target; None if a seed never reached it."""
    found = spread([None if row is None else row.time for row in group.reached(target)])
    return None if found.missing else found.mean


def _goal(groups: Sequence[Group], target: float | None) -> str:
    goals = {result.config.run.target if target is None else target for group in groups for result in group.results}
    return f"{goals.pop():.0%}" if len(goals) == 1 else "its target"
