"""The tables of a comparison: on the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fastagg.sim.groups import Group, Spread, short_keys, speedups, spread
from fastagg.sim.report import empty_table, units

# What table.csv says of every group beside the accuracies and the times to target: numbers of summary.json.
NUMBERS = (
    "final_accuracy", "final_loss", "best_accuracy", "virtual_time", "uploads", "versions", "delay_mean",
    "delay_median", "delay_max", "tau_avg", "tau_median", "tau_max", "client_uploads_min", "client_uploads_max",
    "client_uploads_cv", "server_share",
)  # fmt: skip


def rows(groups: Sequence[Group], target: float | None, baseline: str | None) -> tuple[list[str], list[list[str]]]:
    """Return the headings and cells of the table that people read."""
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    goal = f"{targets.pop():.0%}" if len(targets) == 1 else "target"
    headings = ["method", "accuracy", "best", f"time to {goal}", f"uploads to {goal}"]
    headings += [f"vs {baseline}"] if baseline else []
    headings += ["uploads", "versions", "delay mean", "median", "max"]
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline, target), strict=True):
        reached = group.reached(target)
        cells = [
            group.label + _states(group),
            _percent(group.over("last5_accuracy_mean")),
            _percent(group.over("best_accuracy")),
            _mean(spread([None if row is None else row.time for row in reached]), 1),
            _mean(spread([None if row is None else row.uploads for row in reached]), 0),
        ]
        cells += [("–" if ratio is None else f"{ratio:.1f}x")] if baseline else []
        cells += [_mean(group.over(key), 0) for key in ("uploads", "versions")]
        cells += [_mean(group.over(key), digits) for key, digits in (("delay_mean", 1), ("delay_median", 1))]
        cells += [_mean(spread([max(r.summary["delay_max"] for r in group.results)]), 0)]
        lines.append(cells)
    return headings, lines


def caption(groups: Sequence[Group], baseline: str | None) -> str:
    seeds = {len(group.results) for group in groups}
    text = f"Mean ± deviation over {' or '.join(map(str, sorted(seeds)))} seeds. " if max(seeds) > 1 else ""
    text += "accuracy: mean of a run's last five evaluations, %. "
    text += f"Time is virtual, in {units([r for g in groups for r in g.results])}; delays are in server versions."
    if baseline:
        text += f" vs {baseline}: how many times sooner the target is reached."
    return text


def terminal(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> Table:
    headings, lines = rows(groups, target, baseline)
    table = empty_table("Test accuracy", headings[0])
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    table.caption = caption(groups, baseline)
    table.caption_justify = "left"
    return table


def markdown(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> str:
    headings, lines = rows(groups, target, baseline)
    rule = ["---", *["---:"] * (len(headings) - 1)]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in (headings, rule, *lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped) + f"\n{caption(groups, baseline)}\n"


def groups_csv(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> str:
    """Return one line per group: mean and deviation over seeds of every number, as CSV with a header."""
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline, target), strict=True):
        reached = group.reached(target)
        keys = short_keys(group.choice)
        line: dict[str, Any] = {"label": group.label, "name": group.name}
        line |= {keys[key]: value for key, value in group.choice}
        line |= {"seeds": len(group.results)} | {state: _count(group, state) for state in ("diverged", "interrupted")}
        line |= _pair("accuracy", group.over("last5_accuracy_mean"))
        line |= {"target": group.results[0].config.run.target if target is None else target}
        line |= {"reached": sum(row is not None for row in reached)}
        line |= _pair("time_to_target", spread([None if row is None else row.time for row in reached]))
        line |= _pair("uploads_to_target", spread([None if row is None else row.uploads for row in reached]))
        line |= {"speedup": ratio} if baseline else {}
        for key in NUMBERS:
            line |= _pair(key, group.over(key))
        lines.append(line)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _pair(name: str, value: Spread) -> dict[str, float | None]:
    return {f"{name}_mean": value.mean, f"{name}_std": value.deviation}


def _percent(value: Spread) -> str:
    assert value.mean is not None
    deviation = "" if value.deviation is None else f"±{100 * value.deviation:.1f}"
    return f"{100 * value.mean:.1f}{deviation}"


def _mean(value: Spread, digits: int) -> str:
    if value.mean is None:
        return "never"
    never = f" ({value.missing} never)" if value.missing else ""
    return f"{value.mean:.{digits}f}{never}"


def _count(group: Group, state: str) -> int:
    return sum(result.summary["stopped"] == state for result in group.results)


def _states(group: Group) -> str:
    counts = Counter(r.summary["stopped"] for r in group.results if r.summary["stopped"] != "finished")
    parts = [state if count == len(group.results) == 1 else f"{count} {state}" for state, count in counts.items()]
    return f" ({', '.join(parts)})" if parts else ""
