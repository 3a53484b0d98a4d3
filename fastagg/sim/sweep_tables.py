"""The tables of a comparison: on the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fastagg.sim.groups import Group, Spread, choice_keys, speedups, spread
from fastagg.sim.report import empty_table, units

# The numbers of summary.json in table.csv, in addition to the accuracies and the times to target.
NUMBERS = (
    "final_accuracy", "final_loss", "best_accuracy", "virtual_time", "uploads", "versions", "delay_mean",
    "delay_median", "delay_max", "tau_avg", "tau_median", "tau_max", "client_uploads_min", "client_uploads_max",
    "client_uploads_cv", "server_share",
)  # fmt: skip

# Titles of the papers' measures, by (measure, scale). Other measures are called by their names.
MEASURES = {
    ("last5_accuracy_mean", 100.0): "Accuracy of a run's last five evaluations, %",
    ("final_accuracy", 100.0): "Final accuracy, %",
    ("best_accuracy", 100.0): "Best accuracy, %",
    ("time_to_target", 1.0): "Virtual time to the target accuracy",
}


def rows(groups: Sequence[Group], target: float | None, baseline: str | None) -> tuple[list[str], list[list[str]]]:
    """Return the headings and cells of the table that is printed."""
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    goal = f"{targets.pop():.0%}" if len(targets) == 1 else "target"
    paper = any(group.paper.numbers for group in groups)
    headings = ["method", "accuracy", *(["paper"] if paper else []), "best", f"time to {goal}", f"uploads to {goal}"]
    headings += [f"vs {baseline}"] if baseline else []
    headings += ["uploads", "versions", "delay mean", "median", "max"]
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline, target), strict=True):
        reached = group.reached(target)
        cells = [
            group.label + _states(group),
            _number(group.over("last5_accuracy_mean"), 100),
            *([_number(_printed(group))] if paper else []),
            _number(group.over("best_accuracy"), 100),
            _mean(spread([None if row is None else row.time for row in reached]), 1),
            _mean(spread([None if row is None else row.uploads for row in reached]), 0),
        ]
        cells += [("–" if ratio is None else f"{ratio:.1f}x")] if baseline else []
        cells += [_mean(group.over(key), 0) for key in ("uploads", "versions")]
        cells += [_mean(group.over(key), digits) for key, digits in (("delay_mean", 1), ("delay_median", 1))]
        cells += [_mean(spread([max(r.summary["delay_max"] for r in group.results)]), 0)]
        lines.append(cells)
    return headings, lines


def pivot(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]] | None:
    """Return methods by settings, as in a paper: the number measured here, and the paper's number in brackets.

    None if there is only one setting.
    """
    settings = list(dict.fromkeys(group.setting for group in groups))
    if len(settings) < 2:
        return None
    cells = {(group.method, group.setting): group for group in groups}
    lines = []
    for method in dict.fromkeys(group.method for group in groups):
        found = [cells.get((method, setting)) for setting in settings]
        lines.append([method, *("–" if group is None else _beside(group) for group in found)])
    return ["method", *settings], lines


def _beside(group: Group) -> str:
    return _number(group.ours()) + (f" ({_number(_printed(group))})" if group.paper.numbers else "")


def caption(groups: Sequence[Group], baseline: str | None) -> str:
    seeds = {len(group.results) for group in groups}
    text = f"Mean ± deviation over {' or '.join(map(str, sorted(seeds)))} seeds. " if max(seeds) > 1 else ""
    text += "accuracy: mean of a run's last five evaluations, %. "
    text += f"Time is virtual, in {units([r for g in groups for r in g.results])}; delays are in server versions."
    if baseline:
        text += f" vs {baseline}: how many times sooner the target is reached."
    return text


def pivot_caption(groups: Sequence[Group]) -> str:
    measures = {(group.paper.measure, group.paper.scale) for group in groups}
    what = " or ".join(MEASURES.get(pair, f"{pair[0]} times {pair[1]:g}") for pair in sorted(measures))
    brackets = ", the paper's number in brackets" if any(group.paper.numbers for group in groups) else ""
    return f"{what}: mean ± deviation over seeds{brackets}."


def terminal_pivot(groups: Sequence[Group]) -> Table | None:
    if (crossed := pivot(groups)) is None:
        return None
    return _rich("Methods by settings", *crossed, pivot_caption(groups))


def terminal(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> Table:
    headings, lines = rows(groups, target, baseline)
    return _rich("Test accuracy", headings, lines, caption(groups, baseline))


def _rich(title: str, headings: list[str], lines: list[list[str]], text: str) -> Table:
    table = empty_table(title, headings[0])
    table.columns[0].min_width = max(len(word) for line in lines for word in line[0].split())
    for place, heading in enumerate(headings[1:], start=1):
        # rich would split words to save width if it may break lines.
        words = [*heading.split(), *(word for line in lines for word in line[place].split())]
        table.add_column(heading, justify="right", min_width=max(map(len, words)))
    for line in lines:
        table.add_row(*line)
    table.caption, table.caption_justify = text, "left"
    return table


def markdown(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> str:
    headings, lines = rows(groups, target, baseline)
    text = _pipes(headings, lines) + f"\n{caption(groups, baseline)}\n"
    if (crossed := pivot(groups)) is not None:
        text = f"{_pipes(*crossed)}\n{pivot_caption(groups)}\n\n{text}"
    return text


def _pipes(headings: list[str], lines: list[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in (headings, rule, *lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def groups_csv(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> str:
    """Return CSV with a header and one line per group: the mean and the deviation over seeds of every number."""
    paper = any(group.paper.numbers for group in groups)
    keys = choice_keys(group.choice for group in groups)
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline, target), strict=True):
        reached = group.reached(target)
        line: dict[str, Any] = {"method": group.method, "name": group.name}
        line |= {short: dict(group.choice).get(key) for key, short in keys.items()}
        line |= {"seeds": len(group.results)} | {state: _count(group, state) for state in ("diverged", "interrupted")}
        line |= _pair("accuracy", group.over("last5_accuracy_mean"))
        line |= _pair(f"paper_{group.paper.measure}", _printed(group)) if paper else {}
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


def _printed(group: Group) -> Spread:
    mean, deviation = (*group.paper.numbers, None, None)[:2]
    return Spread(mean, deviation, 0, 0)


def _number(value: Spread, scale: float = 1) -> str:
    if value.mean is None:
        return "–"
    deviation = "" if value.deviation is None else f"±{scale * value.deviation:.1f}"
    return f"{scale * value.mean:.1f}{deviation}"


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
