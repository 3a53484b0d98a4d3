"""The conclusions from runs: tables, sentences about the methods, and notes. ``report.html`` has all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fastagg import page
from fastagg._build import facts
from fastagg.sheet import Sheet
from fastagg.sim.comparison.groups import (
    LEVEL,
    Contrast,
    Group,
    Spread,
    by_setting,
    contrasts,
    goal,
    name_of,
    speedups,
)  # fmt: skip
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.recipes.tables import Cell
from fastagg.sim.runs.metrics import duration, seconds, unit_text
from fastagg.sim.runs.output import csv_text
from fastagg.sim.runs.result import Result

# The keys of summary.json that comparison.csv contains.
RUN_NUMBERS = (
    "algorithm", "seed", "stopped", "final_accuracy", "final_loss", "best_accuracy", "last5_accuracy_mean",
    "last5_accuracy_std", "target_accuracy", "time_to_target", "uploads_to_target", "virtual_time", "uploads",
    "versions", "bytes_up", "bytes_down", "delay_mean", "delay_median", "delay_max", "tau_avg", "tau_median", "tau_max",
)  # fmt: skip

# Titles of the tables' measures. The title of another measure is its name.
TITLES = {
    "last5_accuracy_mean": "Accuracy of a run's last five versions, %",
    "final_accuracy": "Final accuracy, %",
    "best_accuracy": "Best accuracy, %",
    "time_to_target": "Virtual time to the target accuracy",
}

DELAYS = ("delay_mean", "delay_median", "delay_max")
WEIGHTS = {"samples": "by their clients' samples", "uniform": "all alike"}


def table(groups: Sequence[Group], baseline: str | None = None, lost: Sequence[Group] = ()) -> Sheet:
    """Return the table with a line for each group. With a ``baseline``, a column has the groups' speedups over the
    baseline. ``lost``: groups in which all runs failed, which also get a line."""
    baseline, target = name_of(groups, baseline), goal(groups)
    end = "target" if target is None else f"{target:.0%}"
    several, count = len({tuple(group.seeds) for group in groups}) > 1, max(len(group.results) for group in groups)
    lines = []
    for group, ratio in zip(groups, speedups(groups, baseline), strict=True):
        line = {"method": group.label + group.states}
        line |= {"seeds": ", ".join(map(str, group.seeds))} if several else {}
        line["accuracy"] = _number(group.over("last5_accuracy_mean", 100), count=count)
        line["best"] = _number(group.over("best_accuracy", 100), count=count)
        line[f"time to {end}"] = _number(group.over("time_to_target"), 1, group.results[0].unit, "never", count)
        line[f"uploads to {end}"] = _number(group.over("uploads_to_target"), 0, none="never", count=count)
        line |= {f"vs {baseline}": "–" if ratio is None else f"{ratio:.3g}x"} if baseline else {}
        line |= {key: f"{group.over(key).mean:.0f}" for key in ("uploads", "versions")}
        late = max(result.summary["delay_max"] for result in group.results)
        line["delays"] = ", ".join([*(f"{group.over(key).mean:.1f}" for key in DELAYS[:2]), f"{late:.0f}"])
        lines.append(line)
    lines += [dict.fromkeys(lines[0], "–") | {"method": f"{group.label} (failed)"} for group in lost]
    return Sheet("Test accuracy", list(lines[0]), [list(line.values()) for line in lines], _caption(groups, baseline))


def _caption(groups: Sequence[Group], baseline: str | None) -> str:
    runs = [result for group in groups for result in group.results]
    count, every = max(len(group.results) for group in groups), max(run.config.run.evaluate_every for run in runs)
    over = f"{count} seeds" if {len(group.results) for group in groups} == {count} else "the seeds of the line"
    text = f"Mean ± deviation over {over}. " if count > 1 else ""
    text += "accuracy: mean of a run's last five versions, %. "
    units = sorted({run.unit for run in runs})
    unit = "" if all(map(seconds, units)) else f", in {' or '.join(map(unit_text, units))}"
    text += f"Time is virtual{unit}; delays (mean, median, maximum) are in server versions."
    if updates := runs[0].summary.get("target_updates"):
        text += f" A time to the target is that of the first test that reaches it, one in {updates} updates for all."
    elif every > 1:
        text += f" A time to the target is that of the first test that reaches it, of every {every}th version."
    if len({len(group.results) for group in groups}) > 1 or any(group.states for group in groups):
        text += " n: how many seeds a mean has, where it has fewer."
    if any(group.over("time_to_target").least for group in groups):
        text += " ≥: runs that never reach it count as long as they ran."
    if any(run.summary["stopped"] == "diverged" for run in runs):
        text += " A diverged run has no accuracy at its end: the mean is over the others."
    return text + (f" vs {baseline}: how many times sooner the target is reached." if baseline else "")


def pivot(groups: Sequence[Group], lost: Sequence[Group] = ()) -> Sheet | None:
    """Return a table with a row for each method and a column for each setting. A cell with fewer seeds than the others
    shows its number of seeds. ``lost``: groups in which all runs failed. Their cells show n=0.

    None: there is only one setting.
    """
    settings = list(dict.fromkeys(group.setting for group in (*groups, *lost)))
    if len(settings) < 2:
        return None
    count = max(len(group.results) for group in groups)
    cells = {
        (g.method, g.setting): _number(g.over(g.measure, scale(g.measure)), count=count) + g.states for g in groups
    }
    cells |= {(group.method, group.setting): "– (n=0)" for group in lost}
    methods = dict.fromkeys(group.method for group in (*groups, *lost))
    lines = [[method, *(cells.get((method, setting), "–") for setting in settings)] for method in methods]
    what = " or ".join(sorted({TITLES.get(group.measure, group.measure) for group in groups}))
    caption = f"{what}: mean ± deviation over {count} seed{'s' * (count > 1)}, or n where it says so."
    return Sheet("Methods by settings", ["method", *settings], lines, caption)


def scale(measure: str) -> float:
    """Return the factor by which tables multiply the number ``measure``: 100 for accuracies and shares, otherwise 1."""
    return 100.0 if re.search("accuracy|share|client_(mean|worst|spread)", measure) else 1.0


def differences(groups: Sequence[Group], baseline: str | None = None) -> Sheet | None:
    """Return the table of the differences between methods in each setting, with paired tests over seeds. With a
    ``baseline``, only pairs with this method are tested. None: no two methods have two seeds in common."""
    rows, several = list[list[str]](), by_setting(groups)
    for members in several:
        base = name_of(members, baseline)  # None if the baseline has no run in this setting
        ends, times = contrasts(members, "last5_accuracy_mean", base), _times(members, base)
        tests = [(f"accuracy: {test.more} - {test.fewer}", test, str(test.difference)) for test in ends]
        tests += [(f"time: {test.more} / {test.fewer}", test, test.difference.ratio) for test in times]
        setting = [members[0].setting] * (len(several) > 1)
        rows += [[*setting, name, text, str(len(test.difference.pairs)), _p(test.p)] for name, test, text in tests]
    within = " of a setting" if len(several) > 1 else ""
    caption = (
        "Accuracy: points of the last five versions. Time: ratios (geometric means) until the target. By paired "
        f"t-tests over seeds, with Holm's correction for all accuracies{within} and for all times{within}: were all "
        f"methods equal, at most {LEVEL:.0%} of such comparisons had an accuracy with a p below {LEVEL:g}, and as many "
        "a time. A run that never reaches the target counts up to its end, and all others up to there; the accuracy of "
        "a diverged run is 0."
    )
    head = [*["setting"] * (len(several) > 1), "difference", "mean, 95% interval", "seeds", "p"]
    return Sheet("Differences", head, rows, caption) if rows else None


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 else "<0.001"


def _times(groups: Sequence[Group], base: str | None, least: int = 2) -> list[Contrast]:
    """Return the methods' differences in the time to the target. The list is empty if no run reaches the target, or if
    the runs have different targets or units of time."""
    one_unit = len({result.unit for group in groups for result in group.results}) == 1
    reached = any(group.over("time_to_target").mean is not None for group in groups)
    known = one_unit and reached and goal(groups) is not None
    return contrasts(groups, "time_to_target", base, least) if known else []


def _test(tests: Sequence[Contrast]) -> str:
    more = f", with Holm's correction for {len(tests)} of them" if len(tests) > 1 else ""
    return f"at the level of {LEVEL:.0%}, by paired t-tests over seeds{more}"


def _number(value: Spread, digits: int = 1, unit: str = "", none: str = "–", count: int = 0) -> str:
    """Return a mean and its deviation as text. If ``unit`` is in seconds, the numbers are times in words. The text also
    has the number of seeds if this number is below ``count``. ``none``: the text if there is no mean."""
    if value.mean is None:
        return none
    mean, deviation = (
        "" if number is None else duration(number, unit) if seconds(unit) else f"{number:.{digits}f}"
        for number in (value.mean, value.deviation)
    )
    text = f"{'≥ ' * value.least}{mean}{'±' * bool(deviation)}{deviation}" + f" ({value.missing} never)" * value.least
    return text + f" (n={value.count})" * (value.count < count)


def comparison_csv(runs: Sequence[tuple[Cell, Result]]) -> str:
    """Return one line per run with its grid values and the numbers of its summary.json, as CSV with a header."""
    keys = dict.fromkeys(key for cell, _ in runs for key, _ in cell.choice)
    lines = [
        {"name": cell.config.name, **keys, **dict(cell.choice), **{key: result.summary[key] for key in RUN_NUMBERS}}
        for cell, result in runs
    ]
    return csv_text(lines[0], lines)


@dataclass(frozen=True)
class Conclusions:
    """The conclusions from runs. ``sentences``: the conclusions in words, each setting's verdict first. ``sheets``: the
    tables of results. ``notes``: the notes of the runs, such as the cause of a divergence."""

    sentences: list[str]
    sheets: list[Sheet]
    notes: list[str] = field(default_factory=list)


def find(
    groups: Sequence[Group], baseline: str | None = None, absent: Mapping[str, str] | None = None,
    lost: Sequence[Group] = (),
) -> Conclusions:  # fmt: skip
    """Return the conclusions from ``groups``. A setting gets sentences only if it has several methods to compare.

    ``absent``: the runs that are in no table, each with the reason. ``lost``: the groups in which every run failed.
    """
    sheets = [pivot(groups, lost), table(groups, baseline, lost), differences(groups, baseline)]
    sheets += [Sheet("Not in these tables", ["not in these tables", "why"], list(absent.items()))] if absent else []
    several = by_setting(groups)
    said = [
        f"{members[0].setting}: {text}" if len(several) > 1 else text
        for members in several
        if len(members) > 1
        for text in sentences(members, baseline)
    ]
    return Conclusions(said, [sheet for sheet in sheets if sheet is not None], [*_notes(groups)])


def _notes(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the notes of all runs. If the methods weigh updates differently, yield a note about their weights, too. A
    note begins with the names of its runs, unless all runs have the note."""
    said: dict[str, dict[str, list[int]]] = {}
    weighs: dict[str, list[str]] = {}
    for group in groups:
        for result in group.results:
            for note in result.summary.get("notes", []):
                said.setdefault(note, {}).setdefault(group.label, []).append(result.config.seed)
        weighs.setdefault(group.results[0].summary.get("weighting", "uniform"), []).append(group.label)
    every = {group.label: group.seeds for group in groups}
    for note, whose in said.items():
        parts: dict[str, list[str]] = {}
        for label, own in whose.items():
            parts.setdefault(f"seed{'s' * (len(own) > 1)} {', '.join(map(str, own))}", []).append(label)
        names = [own if len(labels) == len(every) else f"{', '.join(labels)}, {own}" for own, labels in parts.items()]
        yield note if whose == every else f"{'; '.join(names)}: {note}"
    if len(weighs) > 1:
        yield "updates are weighed " + "; ".join(f"{WEIGHTS[how]} by {', '.join(who)}" for how, who in weighs.items())


def verdict(groups: Sequence[Group], baseline: str | None) -> str:
    """Return a sentence, without a full stop, that names the method of a setting that reaches the target first. The
    sentence also says how many times sooner than ``baseline``, if this is another method that reaches the target.
    Empty: no method reaches the target, or no method is sooner than all others."""
    base, target = name_of(groups, baseline), goal(groups)
    times, methods = _times(groups, base, least=1), [group.method for group in groups]
    missed = {group.method for group in groups if group.over("time_to_target").mean is None}
    reaches = "reaches its target" if target is None else f"reaches {target:.0%}"
    if later := [test for test in times if test.more == base and test.difference.mean > 0]:
        tests = [max(later, key=lambda test: test.difference.mean)]
        sooner = f" {factor(math.exp(tests[0].difference.mean))} sooner than {base}"
        text = f"{tests[0].fewer} {reaches}" + (f", {base} does not" if base in missed else sooner)
    else:
        first = [method for method in methods if method == base or all(method != test.more for test in times)]
        winner = base or first[0] if first else None
        tests = [test for test in times if test.fewer == winner and test.difference.mean > 0]
        if len(tests) < len(methods) - 1 or winner in missed:
            return ""
        text = f"{winner} {reaches} first"
    if all(test.difference.p is None for test in tests):
        return f"{text} (one seed)"
    return text if all(test.is_shown for test in tests) else f"{text} (not beyond chance)"


def sentences(groups: Sequence[Group], baseline: str | None) -> list[str]:
    """Return the conclusions from the runs of one setting: the verdict, the reason if the baseline waits for rounds,
    the methods that miss the target or diverge, and the differences that the tests show."""
    lines, base = [], name_of(groups, baseline)
    if text := verdict(groups, baseline):
        lines.append(f"{text}.")
        if any(g.method == base and g.results[0].config.participation.rule == "round" for g in groups):
            lines.append(f"{base} waits in every round for the slowest client.")
    times, ends = _times(groups, base), contrasts(groups, "last5_accuracy_mean", base)
    short = [(group, group.over("time_to_target").missing) for group in groups] if times else []
    short = [(group, count) for group, count in short if count]
    lines += [f"{group.method} misses the target with {count} of {_seeds(group)}." for group, count in short]
    if shown := [
        f"{test.fewer} is sooner than {test.more}, {test.difference.ratio}" for test in times if test.is_shown
    ]:
        lines.append(f"Time to the target: {'; '.join(shown)} ({_test(times)}).")
    dead = [(group, sum(r.summary["stopped"] == "diverged" for r in group.results)) for group in groups]
    lines += [f"{group.method} diverged with {count} of {_seeds(group)}." for group, count in dead if count]
    if ends:
        shown = [f"{test.more} is above {test.fewer}, {test.difference}" for test in ends if test.is_shown]
        text = "; ".join(shown) or "no method is above another"
        lines.append(f"Accuracy at the end: {text} ({_test(ends)}).")
    elif len(groups) > 1:
        means = [f"{group.method} {_number(group.over('last5_accuracy_mean', 100))}" for group in groups]
        lines.append(f"Accuracy at the end: {', '.join(means)} (too few seeds for a test).")
    return lines


def _seeds(group: Group) -> str:
    return f"{len(group.results)} seed{'s' * (len(group.results) > 1)}"


def factor(ratio: float) -> str:
    """Return a ratio in words, with as many digits as in tables: "41.2 times", "1.15 times"."""
    return f"{ratio:.3g} times"


def report(groups: Sequence[Group], conclusions: Conclusions, pictures: Mapping[str, bytes], title: str = "") -> str:
    """Return one HTML page with the settings of ``groups``, their ``conclusions``, and PNG ``pictures``. ``title``
    empty: the methods' names are the title."""
    blocks = [(page.paragraph if place else page.heading)(text) for place, text in enumerate(conclusions.sentences)]
    blocks += [page.table(sheet) for sheet in conclusions.sheets]
    blocks += [page.picture(name, png) for name, png in pictures.items()]
    blocks += [page.paragraph(note) for note in conclusions.notes]
    blocks += [page.heading("Settings and machine")]
    blocks += [page.text(f"{group.label}: config.toml", to_toml(group.results[0].config)) for group in groups]
    blocks.append(page.settings("Machine and versions", facts()))
    seeds = sorted({result.config.seed for group in groups for result in group.results})
    note = f"Seeds: {', '.join(map(str, seeds))}."
    return page.page(title or ", ".join(dict.fromkeys(group.method for group in groups)), blocks, note)
