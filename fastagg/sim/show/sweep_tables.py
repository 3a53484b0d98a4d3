"""Tables about runs: results, where the time went, claims; and the same numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastagg.sheet import Sheet
from fastagg.sim.many.groups import Group, Spread, name_of, speedups, spread
from fastagg.sim.one.metrics import ACTIVITIES, duration, seconds, unit_text

if TYPE_CHECKING:
    from fastagg.sim.many.claims import Judged
    from fastagg.sim.one.result import Result
    from fastagg.sim.recipes.tables import Cell

# The numbers of summary.json in comparison.csv.
RUN_NUMBERS = (
    "algorithm", "seed", "stopped", "final_accuracy", "final_loss", "best_accuracy", "last5_accuracy_mean",
    "last5_accuracy_std", "time_to_target", "uploads_to_target", "virtual_time", "uploads", "versions", "bytes_up",
    "bytes_down", "delay_mean", "delay_median", "delay_max", "tau_avg", "tau_median", "tau_max", "client_uploads_min",
    "client_uploads_max", "client_uploads_cv",
)  # fmt: skip

# Titles of the papers' measures, by (measure, scale). Other measures are called by their names.
MEASURES = {
    ("last5_accuracy_mean", 100.0): "Accuracy of a run's last five evaluations, %",
    ("final_accuracy", 100.0): "Final accuracy, %",
    ("best_accuracy", 100.0): "Best accuracy, %",
    ("time_to_target", 1.0): "Virtual time to the target accuracy",
}


def table(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> Sheet:
    """Return the table with a line for each group of seeds."""
    baseline = name_of(groups, baseline)
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
            _time(spread([None if row is None else row.time for row in reached]), group.results[0].unit),
            _mean(spread([None if row is None else row.uploads for row in reached]), 0),
        ]
        cells += [("–" if ratio is None else f"{ratio:.1f}x")] if baseline else []
        cells += [_mean(group.over(key), 0) for key in ("uploads", "versions")]
        cells += [_mean(group.over(key), digits) for key, digits in (("delay_mean", 1), ("delay_median", 1))]
        cells += [_mean(spread([max(r.summary["delay_max"] for r in group.results)]), 0)]
        lines.append(cells)
    return Sheet("Test accuracy", headings, lines, _caption(groups, baseline))


def pivot(groups: Sequence[Group]) -> Sheet | None:
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
    return Sheet("Methods by settings", ["method", *settings], lines, _pivot_caption(groups))


def _beside(group: Group) -> str:
    return _number(group.ours()) + (f" ({_number(_printed(group))})" if group.paper.numbers else "")


def _caption(groups: Sequence[Group], baseline: str | None) -> str:
    seeds = {len(group.results) for group in groups}
    text = f"Mean ± deviation over {' or '.join(map(str, sorted(seeds)))} seeds. " if max(seeds) > 1 else ""
    text += "accuracy: mean of a run's last five evaluations, %. "
    runs = [result for group in groups for result in group.results]
    unit = "" if all(seconds(result.unit) for result in runs) else f", in {units(runs)}"
    text += f"Time is virtual{unit}; delays are in server versions."
    if baseline:
        text += f" vs {baseline}: how many times sooner the target is reached."
    return text


def _pivot_caption(groups: Sequence[Group]) -> str:
    measures = {(group.paper.measure, group.paper.scale) for group in groups}
    what = " or ".join(MEASURES.get(pair, f"{pair[0]} times {pair[1]:g}") for pair in sorted(measures))
    brackets = ", the paper's number in brackets" if any(group.paper.numbers for group in groups) else ""
    return f"{what}: mean ± deviation over seeds{brackets}."


def markdown(groups: Sequence[Group], target: float | None = None, baseline: str | None = None) -> str:
    """Return both tables in Markdown, the one by settings first."""
    found = (pivot(groups), table(groups, target, baseline))
    return "\n".join(sheet.markdown() for sheet in found if sheet is not None)


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


def _time(value: Spread, unit: str) -> str:
    """Return a mean time in words if its unit is known in seconds, and as a number otherwise."""
    if value.mean is None or not seconds(unit):
        return _mean(value, 1)
    never = f" ({value.missing} never)" if value.missing else ""
    return duration(value.mean, unit) + never


def _states(group: Group) -> str:
    counts = Counter(r.summary["stopped"] for r in group.results if r.summary["stopped"] != "finished")
    parts = [state if count == len(group.results) == 1 else f"{count} {state}" for state, count in counts.items()]
    return f" ({', '.join(parts)})" if parts else ""


def time_table(lines: Sequence[tuple[str, Mapping[str, float]]]) -> Sheet:
    """Return a table with a line per label: its wall seconds and their shares by activity."""
    rows = []
    for label, wall in lines:
        cells = [f"{wall[activity]:.2f} {wall[activity] / wall['total']:4.0%}" for activity in (*ACTIVITIES, "other")]
        rows.append([label, *cells, f"{wall['total']:.2f}"])
    return Sheet(
        "Where the time goes (wall seconds and share)", ["method", *ACTIVITIES, "other", "total"], rows,
        "server: with drawing who is next and its delay. setup: loading data, building the model. other: records, "
        "checkpoints.",
    )  # fmt: skip


def comparison_csv(runs: Sequence[tuple[Cell, Result]]) -> str:
    """Return one line per run with its grid values and the numbers of its summary.json, as CSV with a header."""
    keys = dict.fromkeys(key for cell, _ in runs for key, _ in cell.choice)
    lines = [
        {"name": cell.config.name, **keys, **dict(cell.choice), **{key: result.summary[key] for key in RUN_NUMBERS}}
        for cell, result in runs
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def units(results: Sequence[Result]) -> str:
    """Return the units of virtual time of all ``results``, in words."""
    return " or ".join(unit_text(unit) for unit in sorted({result.unit for result in results}))


def claims_table(found: Sequence[Judged]) -> Sheet:
    """Return a table with a line per claim of a paper: what these runs say of it."""
    rows = [
        [one.claim.text, str(one.difference), str(len(one.difference.pairs)), one.difference.verdict] for one in found
    ]
    return Sheet("Claims", ["claim", "difference, 95% interval", "seeds", "verdict"], rows)
