"""What runs showed: tables, sentences that name who wins and who loses, notes; and ``report.html`` with all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastagg import page
from fastagg.facts import facts
from fastagg.sheet import Sheet
from fastagg.sim.many.groups import Group, Judged, Spread, goal, name_of, speedups
from fastagg.sim.one.metrics import ACTIVITIES, duration, seconds, unit_text
from fastagg.sim.one.output import csv_text
from fastagg.sim.one.result import Result
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.recipes.tables import Cell, Paper

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

DELAYS = {"delay mean": "delay_mean", "median": "delay_median"}


def table(groups: Sequence[Group], baseline: str | None = None) -> Sheet:
    """Return the table with a line for each group of seeds."""
    baseline, target = name_of(groups, baseline), goal(groups)
    end = "target" if target is None else f"{target:.0%}"
    paper = any(group.paper.numbers for group in groups)
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline), strict=True):
        line = {"method": group.label + _states(group), "accuracy": _number(group.over("last5_accuracy_mean"), 100)}
        line |= {"paper": _number(_printed(group))} if paper else {}
        line["best"] = _number(group.over("best_accuracy"), 100)
        line[f"time to {end}"] = _mean(group.until(), 1, group.results[0].unit)
        line[f"uploads to {end}"] = _mean(group.until("uploads"), 0)
        line |= {f"vs {baseline}": "–" if ratio is None else f"{ratio:.1f}x"} if baseline else {}
        line |= {key: _mean(group.over(key), 0) for key in ("uploads", "versions")}
        line |= {text: _mean(group.over(key), 1) for text, key in DELAYS.items()}
        line["max"] = f"{max(result.summary['delay_max'] for result in group.results):.0f}"
        lines.append(line)
    return Sheet("Test accuracy", list(lines[0]), [list(line.values()) for line in lines], _caption(groups, baseline))


def _caption(groups: Sequence[Group], baseline: str | None) -> str:
    seeds = {len(group.results) for group in groups}
    text = f"Mean ± deviation over {' or '.join(map(str, sorted(seeds)))} seeds. " if max(seeds) > 1 else ""
    text += "accuracy: mean of a run's last five evaluations, %. "
    units = sorted({result.unit for group in groups for result in group.results})
    unit = "" if all(map(seconds, units)) else f", in {' or '.join(map(unit_text, units))}"
    text += f"Time is virtual{unit}; delays are in server versions."
    return text + (f" vs {baseline}: how many times sooner the target is reached." if baseline else "")


def pivot(groups: Sequence[Group]) -> Sheet | None:
    """Return methods by settings, as in a paper: the number measured here, and the paper's number in brackets.

    None if there is only one setting.
    """
    settings = list(dict.fromkeys(group.setting for group in groups))
    if len(settings) < 2:
        return None
    cells = {(group.method, group.setting): _beside(group) for group in groups}
    methods = dict.fromkeys(group.method for group in groups)
    lines = [[method, *(cells.get((method, setting), "–") for setting in settings)] for method in methods]
    what = " or ".join(sorted({measure(group.paper) for group in groups}))
    brackets = ", the paper's number in brackets" if any(group.paper.numbers for group in groups) else ""
    caption = f"{what}: mean ± deviation over seeds{brackets}."
    return Sheet("Methods by settings", ["method", *settings], lines, caption)


def measure(paper: Paper) -> str:
    """Return what the paper's numbers are."""
    return MEASURES.get((paper.measure, paper.scale), f"{paper.measure} times {paper.scale:g}")


def _beside(group: Group) -> str:
    return _number(group.ours()) + (f" ({_number(_printed(group))})" if group.paper.numbers else "")


def markdown(groups: Sequence[Group], baseline: str | None = None) -> str:
    """Return both tables in Markdown, the one by settings first."""
    found = (pivot(groups), table(groups, baseline))
    return "\n".join(sheet.markdown() for sheet in found if sheet is not None)


def _printed(group: Group) -> Spread:
    mean, deviation = (*group.paper.numbers, None, None)[:2]
    return Spread(mean, deviation)


def _number(value: Spread, scale: float = 1) -> str:
    if value.mean is None:
        return "–"
    deviation = "" if value.deviation is None else f"±{scale * value.deviation:.1f}"
    return f"{scale * value.mean:.1f}{deviation}"


def _mean(value: Spread, digits: int, unit: str = "") -> str:
    """Return a mean, in words if it is a time whose ``unit`` is known in seconds."""
    if value.mean is None:
        return "never"
    never = f" ({value.missing} never)" if value.missing else ""
    return (duration(value.mean, unit) if seconds(unit) else f"{value.mean:.{digits}f}") + never


def _states(group: Group) -> str:
    counts = Counter(r.summary["stopped"] for r in group.results if r.summary["stopped"] != "finished")
    parts = [state if count == len(group.results) == 1 else f"{count} {state}" for state, count in counts.items()]
    return f" ({', '.join(parts)})" if parts else ""


def time_table(lines: Sequence[tuple[str, Mapping[str, float]]]) -> Sheet:
    """Return a table with a line per label: its wall seconds and their shares by activity."""
    parts = (*ACTIVITIES, "other")
    return Sheet(
        "Where the time goes (wall seconds and share)",
        ["method", *parts, "total"],
        [
            [label, *(f"{wall[part]:.2f} {wall[part] / wall['total']:4.0%}" for part in parts), f"{wall['total']:.2f}"]
            for label, wall in lines
        ],
        "server: with drawing who is next and its delay. setup: loading data, building the model. other: records, "
        "checkpoints.",
    )


def comparison_csv(runs: Sequence[tuple[Cell, Result]]) -> str:
    """Return one line per run with its grid values and the numbers of its summary.json, as CSV with a header."""
    keys = dict.fromkeys(key for cell, _ in runs for key, _ in cell.choice)
    lines = [
        {"name": cell.config.name, **keys, **dict(cell.choice), **{key: result.summary[key] for key in RUN_NUMBERS}}
        for cell, result in runs
    ]
    return csv_text(lines[0], lines)


def claims_table(found: Sequence[Judged]) -> Sheet:
    """Return a table with a line per claim of a paper: what these runs say of it."""
    pairs = [(one.claim.text, one.difference) for one in found]
    rows = [[text, str(found), str(len(found.pairs)), found.verdict] for text, found in pairs]
    return Sheet("Claims", ["claim", "difference, 95% interval", "seeds", "verdict"], rows)


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


def report(groups: Sequence[Group], found: Findings, pictures: Mapping[str, bytes], title: str = "") -> str:
    """Return one HTML page about ``groups``, what they showed, and PNG pictures. A single run is one group."""
    blocks = [(page.paragraph if place else page.heading)(text) for place, text in enumerate(found.sentences)]
    blocks += [page.table(sheet) for sheet in found.sheets]
    blocks += [page.picture(name, png) for name, png in pictures.items()]
    blocks += [page.paragraph(note) for note in found.notes]
    blocks += [page.table(found.times), page.heading("Settings and machine")]
    blocks += [page.text(f"{group.label}: config.toml", to_toml(group.results[0].config)) for group in groups]
    blocks.append(page.settings("Machine and versions", facts()))
    seeds = sorted({result.config.seed for group in groups for result in group.results})
    note = f"Seeds: {', '.join(map(str, seeds))}."
    return page.page(title or ", ".join(dict.fromkeys(group.method for group in groups)), blocks, note)
