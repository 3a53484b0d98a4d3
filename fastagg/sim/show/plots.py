"""All pictures, of a run and of a comparison.

Bands have an edge, so that they stay readable where they cross. Accuracy begins at zero, so that noise does not look
like a difference.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastagg._types import Plain
from fastagg.page import COLOURS
from fastagg.sim.many.groups import Group, choice_keys, name_of, speedups
from fastagg.sim.one.metrics import duration
from fastagg.sim.recipes.tables import SETTING
from fastagg.sim.show import findings, series
from fastagg.sim.show.series import MOST_LINES
from fastagg.sim.show.style import GREY, TEXT, logarithmic, look, marks, tidy

if TYPE_CHECKING:
    from fastagg.sim.many.claims import Judged
    from fastagg.sim.one.result import Result

INK = {"shown": COLOURS[2], "reversed": COLOURS[1]}  # of a claim's verdict; others are grey
MEASURES = {"last5_accuracy_mean": "test accuracy (%)", "best_accuracy": "best test accuracy (%)"}
_LETTERS = 66  # that fit in a line of a run's picture


def accuracy_figure(result: Result) -> Figure:
    """Draw a run's test accuracy over virtual time, below its recipe's purpose (a PNG has 1000 x 640 pixels)."""
    width, height = 5.0, 3.2
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    factor, label = series.time_scale(max(row.time for row in result.rows), result.unit)
    shown = np.array([100 * row.accuracy for row in result.rows])
    axes.plot([factor * row.time for row in result.rows], shown, label=result.label, markevery=marks(0, len(shown)),
              **look(0))  # fmt: skip
    axes.set_xlim(left=0)
    _percent(axes, [shown], result.config.run.target)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy (%)")
    tidy(axes)
    heading = textwrap.fill(result.config.about, _LETTERS)
    axes.set_title(heading, fontsize=TEXT)
    # Room for the text, in inches. Every run has this picture, and matplotlib takes as long to measure text as to draw.
    below = 0.48 + 0.185 * _legend(figure, axes)
    above = 0.1 + 0.16 * (heading.count("\n") + 1 if heading else 0)
    bottom, top = below / height, max(1 - above / height, below / height + 0.1)
    figure.subplots_adjust(0.6 / width, bottom, 1 - 0.2 / width, top)
    return figure


def _percent(axes: Axes, shown: Sequence[np.ndarray], target: float | None) -> None:
    """Draw the target (0 to 1), and let the y axis begin at zero and end above every curve [points] and the target."""
    if target is not None:
        axes.axhline(100 * target, color=GREY, linewidth=0.8, linestyle=(0, (2, 3)), label=f"target {100 * target:g}%")
    high = max(float(curve.max()) for curve in shown)
    axes.set_ylim(0, min(100.5, 1.08 * max(high, 100 * (target or 0.0), 1.0)))


def _legend(figure: Figure, axes: Axes, letters: int = 60) -> int:
    """Put the legend of ``axes``' lines below all axes, so that it covers no curve; ``letters`` fit in a line.

    Returns the number of its lines.
    """
    # others are matplotlib's own
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    columns = max(1, min(len(lines), letters // (max(len(str(line.get_label())) for line in lines) + 8)))
    figure.legend(
        handles=lines, loc="lower center" if figure.get_layout_engine() is None else "outside lower center",
        ncols=columns, fontsize=TEXT - 1, frameon=False, handlelength=3,
    )  # fmt: skip
    return -(-len(lines) // columns)


def _seeds(groups: Sequence[Group]) -> str:
    seeds = max(len(group.results) for group in groups)
    return f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else ""


def curves(groups: Sequence[Group], labels: Sequence[str], title: str = "", target: float | None = None) -> Figure:
    """Draw test accuracy over virtual time, server versions and client updates: the mean and a band over seeds.

    The band is one sample deviation to either side. Seeds are evaluated at different moments, so their curves are
    joined by straight lines. A seed that has ended keeps its last accuracy. If runs have different units of virtual
    time, the picture over it is left out.
    """
    panels = [("version", "server versions", 1.0), ("uploads", "client updates received", 1.0)]
    if (scale := series.time_axis(groups)) is not None:
        panels.insert(0, ("time", scale[1], scale[0]))
    figure = Figure(figsize=(3 * len(panels), 3), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    for axes, (field, text, factor) in zip(all_axes, panels, strict=True):
        _percent(axes, _panel(axes, groups, labels, field, factor), targets.copy().pop() if len(targets) == 1 else None)
        axes.set_xlabel(text)
        tidy(axes)
    all_axes[0].set_ylabel("test accuracy (%)", fontsize=TEXT)
    figure.suptitle("\n".join(filter(None, (title, _seeds(groups)))), fontsize=TEXT, wrap=True)
    _legend(figure, all_axes[0], letters=38 * len(panels))
    return figure


def _panel(axes: Axes, groups: Sequence[Group], labels: Sequence[str], field: str, factor: float) -> list[np.ndarray]:
    """Draw the mean accuracy over one ``field`` of the rows, with a band over seeds; return the curves in percent."""
    shown, xs = [], []
    for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
        x, mean, deviation = series.mean_curve([result.rows for result in group.results], field)
        xs.append(factor * x)
        shown.append(100 * mean)
        style = look(number)
        axes.plot(xs[-1], shown[-1], label=label, markevery=marks(number, len(x), len(groups)), **style)
        if deviation is not None:
            low, high = 100 * (mean - deviation), 100 * (mean + deviation)
            colours: Plain = {"facecolor": (style["color"], 0.12), "edgecolor": (style["color"], 0.35)}
            axes.fill_between(xs[-1], low, high, linewidth=0.4, **colours)
    if series.far_apart(xs):
        logarithmic(axes, "x")
    else:
        axes.set_xlim(left=0)
    return shown


def to_target(
    groups: Sequence[Group], labels: Sequence[str], title: str, target: float | None, baseline: str | None
) -> Figure | None:
    """Draw who reaches the target how soon: the time of each method as a bar with its ratio to ``baseline``, and the
    accuracy over time. The heading is the verdict; ``title`` stands below it. None if there is no verdict.
    """
    text, scale = findings.verdict(groups, target, baseline), series.time_axis(groups)
    if not text or scale is None or not 1 < len(groups) <= MOST_LINES:
        return None
    figure = Figure(figsize=(9, 1.9 + 0.42 * max(4, len(groups))), layout="constrained")
    bars, axes = figure.subplots(1, 2, width_ratios=(1.15, 1))
    ratios, base = speedups(groups, baseline, target), name_of(groups, baseline)
    times = [findings.mean_time(group, target) for group in groups]
    longest = max(time for time in times if time is not None)
    for place, (group, label, time, ratio) in enumerate(zip(groups, labels, times, ratios, strict=True)):
        words = "not reached with every seed"
        if time is not None:
            bars.barh(place, time, height=0.62, color=look(place)["color"])
            words = duration(time, group.results[0].unit)
            if ratio is not None and label != base:
                words += f": {findings.factor(max(ratio, 1 / ratio))} {'sooner' if ratio >= 1 else 'later'}"
        far = time is not None and time > 0.5 * longest
        bars.annotate(
            words, (time or 0.0, place), xytext=(-5 if far else 5, 0), textcoords="offset points", va="center",
            ha="right" if far else "left", color="white" if far else "black", fontsize=TEXT, weight="bold",
        )  # fmt: skip
    bars.set_yticks(range(len(groups)), labels, fontsize=TEXT)
    bars.set_ylim(len(groups) - 0.5, -0.5)
    wanted = groups[0].results[0].config.run.target if target is None else target
    bars.set_title(f"virtual time until {wanted:.0%} accuracy", fontsize=TEXT)
    bars.spines[["top", "right", "bottom"]].set_visible(False)
    bars.set_xticks([])
    bars.tick_params(left=False)
    _percent(axes, _panel(axes, groups, labels, "time", scale[0]), wanted)
    tidy(axes)
    axes.set_xlabel(scale[1])
    axes.set_title("test accuracy (%)", fontsize=TEXT)
    figure.suptitle(f"{text}\n", fontsize=TEXT + 4, weight="bold")
    figure.text(0.5, 0.9, title, ha="center", va="center", fontsize=TEXT, color=GREY)
    _legend(figure, axes, letters=100)
    return figure


def _varied(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the grid keys with more than one value, and their values, as repr."""
    keys = choice_keys(group.choice for group in groups)
    values = {key: list(dict.fromkeys(repr(dict(group.choice).get(key)) for group in groups)) for key in keys}
    return {key: found for key, found in values.items() if len(found) > 1}


def lines_over_key(groups: Sequence[Group]) -> Figure | None:
    """Draw the table's measure over the only grid key with at least three numbers: a line per method, with bars of one
    sample deviation to either side. None if there is no such key, or more than one grid key.
    """
    if len(varied := list(_varied(groups))) != 1:
        return None
    try:
        places = [float(str(dict(group.choice).get(varied[0]))) for group in groups]
    except ValueError:
        return None
    if len(set(places)) < 3:
        return None
    figure = Figure(figsize=(4.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(dict.fromkeys(group.method for group in groups)):
        found = [(place, g.ours()) for place, g in zip(places, groups, strict=True) if g.method == method]
        own = sorted((place, one.mean, one.deviation or 0.0) for place, one in found if one.mean is not None)
        x, mean, bars = ([triple[column] for triple in own] for column in range(3))
        axes.plot(x, mean, label=method, **look(number))
        axes.errorbar(x, mean, bars, fmt="none", ecolor=look(number)["color"], elinewidth=0.8, capsize=3)
    measure = groups[0].paper.measure
    axes.set_xlabel(varied[0])
    axes.set_ylabel(MEASURES.get(measure, measure.replace("_", " ")))
    figure.suptitle(_seeds(groups), fontsize=TEXT)
    tidy(axes)
    _legend(figure, axes)
    return figure


def heat_map(groups: Sequence[Group]) -> Figure | None:
    """Draw the mean accuracy over the first two grid keys with more than one value, one panel per method.

    None if there are no two such keys. If there are more keys, the best value over them is shown.
    """
    values = {key: found for key, found in _varied(groups).items() if key != SETTING}
    if len(values) < 2 or len({tuple(dict(group.choice)) for group in groups}) > 1:
        return None
    (down, rows), (across, columns), *_ = values.items()
    methods = list(dict.fromkeys(group.method for group in groups))
    found = np.full((len(methods), len(rows), len(columns)), np.nan)
    for group in groups:
        chosen = {key: repr(value) for key, value in group.choice}
        place = methods.index(group.method), rows.index(chosen[down]), columns.index(chosen[across])
        if (mean := group.over("last5_accuracy_mean").mean) is not None:
            found[place] = np.fmax(found[place], 100 * mean)
    wide, high = max(3.2, 0.75 * len(columns) + 1.2), max(2.6, 0.55 * len(rows) + 1.2)
    across_page = min(len(methods), 3)
    lines = -(-len(methods) // across_page)
    figure = Figure(figsize=(wide * across_page + 1.2, high * lines + 0.4), layout="constrained")
    panels = [figure.add_subplot(lines, across_page, number + 1) for number in range(len(methods))]
    lowest, highest, short = float(np.nanmin(found)), float(np.nanmax(found)), choice_keys(g.choice for g in groups)
    for axes, method, table in zip(panels, methods, found, strict=True):
        image = axes.imshow(table, cmap="viridis", vmin=lowest, vmax=highest, aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(table):
            ink = "white" if value < (lowest + highest) / 2 else "black"
            axes.text(column, row, "" if np.isnan(value) else f"{value:.1f}", ha="center", va="center", color=ink)
        axes.set_xticks(range(len(columns)), [text.strip("'") for text in columns])
        axes.set_yticks(range(len(rows)), [text.strip("'") for text in rows])
        axes.set(xlabel=short[across], ylabel=short[down])
        axes.set_title(method, fontsize=11)
    figure.colorbar(image, ax=panels, label="test accuracy (%), mean over seeds")
    return figure


def delay_tails(groups: Sequence[Group]) -> Figure:
    """Draw the share of updates with at least a given delay, over that delay (the CCDF), on two logarithmic axes.

    Very late updates are few. A logarithmic axis shows them; in a histogram their bars would be too small to see.
    Groups with exactly the same delays share a line, for example several methods with the same clients and seed.
    """
    worlds: dict[tuple[tuple[int, int], ...], list[Group]] = {}
    for group in groups:
        worlds.setdefault(tuple(sorted(series.total_delays(group.results).items())), []).append(group)
    shown = list(worlds.items())[:MOST_LINES]
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for found, alike in shown:
        number = groups.index(alike[0])  # the look that this method has in the other pictures
        delays, shares = series.tail(dict(found))
        facts = f"mean {alike[0].over('delay_mean').mean or 0.0:.1f}, max {max(dict(found), default=0)}"
        names = f"{series.names_of(alike, len(groups))} ({facts})" + ("" if len(delays) else ": no update was late")
        every = marks(number, max(1, len(delays)), len(shown))
        axes.plot(delays, shares, drawstyle="steps-post", label=names, markevery=every, **look(number))
    if any(delay > 0 for found, _ in shown for delay, _ in found):  # rounds have no late updates
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set_xlim(left=0.9)
    more = f" (the first {MOST_LINES} of {len(worlds)})" if len(worlds) > MOST_LINES else ""
    axes.set_xlabel(f"delay of an update (server versions){more}")
    axes.set_ylabel("share of updates at least as late")
    tidy(axes)
    _legend(figure, axes)
    return figure


def claims(found: Sequence[Judged], title: str = "") -> Figure:
    """Draw a line per claim: each seed's difference, their mean and its interval. Right of zero the claim holds."""
    texts = [textwrap.fill(one.claim.text, 44) for one in found]
    height = 1.3 + sum(0.28 + 0.2 * (text.count("\n") + 1) for text in texts)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="#444444", linewidth=1)
    for place, one in enumerate(found):
        difference, values = one.difference, list(one.difference.pairs.values())
        ink = INK.get(difference.verdict, GREY)
        if difference.low is not None and difference.high is not None:
            axes.plot([difference.low, difference.high], [place, place], color=ink, linewidth=3, alpha=0.5)
        axes.plot(values, [place] * len(values), "o", color=ink, markersize=4, markerfacecolor="white")
        axes.plot([difference.mean], [place], "D", color=ink, markersize=7)
        right = max([*values, difference.high or difference.mean]), place
        axes.annotate(difference.verdict, right, xytext=(8, 0), textcoords="offset points", color=ink, va="center")
    tidy(axes)
    axes.set_yticks(range(len(found)), texts, fontsize=10)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.set_xlabel("difference" + ", percentage points" * all(one.claim.scale == 100 for one in found))
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
    axes.set_title(title, fontsize=12, wrap=True)
    return figure
