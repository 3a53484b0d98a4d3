"""Draws all pictures of runs and comparisons.

Bands have an edge, so that they stay readable where they cross. Axes of accuracy begin at zero, so that noise does not
look like a difference.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastagg._types import Plain
from fastagg.drawing import GREY, TEXT, legend, logarithmic, look, marks, tidy
from fastagg.sim.comparison.groups import Group, by_setting, choice_keys, goal, name_of, speedups
from fastagg.sim.runs.metrics import duration
from fastagg.sim.show import findings, series
from fastagg.sim.show.series import MOST_LINES

ROW = 2.1  # the height of a row of axes, in inches, in a picture with a width


def pictures(
    groups: Sequence[Group], title: str, baseline: str | None, fields: Sequence[str] = (), width: float | None = None
) -> Iterator[tuple[str, Figure]]:
    """Yield all pictures for which there are enough runs, by name. ``fields``, ``width``: see :func:`curves`."""
    alike = len(by_setting(groups)) == 1
    if baseline is not None and alike and (figure := to_target(groups, title, baseline, width)):
        yield "target", figure
    for part, members in series.few_lines(groups).items():
        yield f"accuracy,{part}".strip(","), curves(members, ": ".join(filter(None, (title, part))), fields, width)
        yield f"delays,{part}".strip(","), delay_tails(members, part)
    if figure := lines_over_key(groups):
        yield "lines", figure


def curves(groups: Sequence[Group], title: str = "", fields: Sequence[str] = (), width: float | None = None) -> Figure:
    """Draw test accuracy over the x axes ``fields``, keys of :func:`series.x_axes`. Empty: all x axes. A curve is the
    mean over seeds, with a band of one sample deviation to either side. ``width``: the picture's width in inches. Plots
    that do not fit side by side go into further lines. None: all plots stand side by side.
    """
    panels = {key: axis for key, axis in series.x_axes(groups).items() if key in fields or not fields}
    columns = len(panels) if width is None else max(1, min(len(panels), int(width / 2.1)))
    lines = -(-len(panels) // columns)
    size = (max(5, 3 * len(panels)), 3.2) if width is None else (width, ROW * lines)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    all_axes = grid.flat
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, (field, (text, factor)) in zip(all_axes, panels.items(), strict=False):
        _panel(axes, groups, field, factor)
        axes.set_xlabel(text)
    for axes in grid[:, 0]:
        axes.set_ylabel("test accuracy (%)")
    seeds = _seeds(groups)
    about = filter(None, (title, seeds and f"{seeds}, until one ends"))
    figure.suptitle("\n".join(about), fontsize=TEXT, wrap=True)
    _legend(figure, all_axes[0])
    return figure


def _panel(axes: Axes, groups: Sequence[Group], field: str, factor: float) -> None:
    """Draw the mean accuracy over one ``field`` of the rows, times ``factor``, with a band over seeds, and the target.
    The y axis begins at zero and ends above every curve and the target, at 100.5 at most."""
    high, xs, target = 1.0, [], goal(groups)
    for number, (group, label) in enumerate(zip(groups, series.line_labels(groups), strict=True)):
        x, mean, deviation = series.mean_curve(group, field)
        xs.append(factor * x)
        style = look(number)
        axes.plot(xs[-1], mean, label=label + group.states, markevery=marks(number), **style)
        if deviation is not None:
            colours: Plain = {"facecolor": (style["color"], 0.12), "edgecolor": (style["color"], 0.35)}
            axes.fill_between(xs[-1], mean - deviation, mean + deviation, linewidth=0.4, **colours)
        high = max(high, float(mean.max()))
    if target is not None:
        high, end = max(high, 100 * target), f"target {100 * target:g}%"
        axes.axhline(100 * target, color=GREY, linewidth=0.8, linestyle=(0, (2, 3)), label=end)
    axes.set_ylim(0, min(100.5, 1.08 * high))
    if series.far_apart(xs):
        logarithmic(axes, "x")
    else:
        axes.set_xlim(left=0)
    tidy(axes)


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of ``axes``' lines below all axes."""
    # Labels that begin with "_" are matplotlib's own.
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    legend(figure, lines, [str(line.get_label()) for line in lines])


def _seeds(groups: Sequence[Group]) -> str:
    seeds = max(len(group.results) for group in groups)
    return f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else ""


def to_target(groups: Sequence[Group], title: str, baseline: str | None, width: float | None = None) -> Figure | None:
    """Draw how soon each method reaches the target. A bar shows the method's time and its ratio to ``baseline``. Next
    to the bars, or below them with a ``width`` under 6 inches, is the accuracy over time. The heading is the verdict.
    ``title`` stands below the heading. None: there is no verdict, or runs have different targets or units of time.
    """
    text, scale, target = findings.verdict(groups, baseline), series.x_axes(groups).get("time"), goal(groups)
    if not text or scale is None or target is None or len(groups) < 2:
        return None
    high = 0.42 * max(4, len(groups))
    if width is not None and width < 6:
        figure = Figure(figsize=(width, ROW + high), layout="constrained")
        bars, axes = figure.subplots(2, 1, height_ratios=(high, ROW))
    else:
        figure = Figure(figsize=(width or 9, (1.9 if width is None else 0.5) + high), layout="constrained")
        bars, axes = figure.subplots(1, 2, width_ratios=(1.15, 1))
    base, labels = name_of(groups, baseline), series.line_labels(groups)
    times = [group.over("time_to_target").of_all for group in groups]
    longest = max(time for time in times if time is not None)
    for place, (time, ratio) in enumerate(zip(times, speedups(groups, baseline), strict=True)):
        words = "not reached with every seed"
        if time is not None:
            bars.barh(place, time, height=0.62, color=look(place)["color"])
            words = duration(time, groups[place].results[0].unit)
            if ratio is not None and labels[place] != base:
                words += f"\n{findings.factor(max(ratio, 1 / ratio))} {'sooner' if ratio >= 1 else 'later'}"
        offset: Plain = {"xytext": (4, 0), "textcoords": "offset points"}
        bars.annotate(words, (time or 0.0, place), va="center", fontsize=TEXT - 1, **offset)
    bars.set_xlim(0, 1.9 * longest)  # room for the text beside the bars
    wrapped = [textwrap.fill(label, 40 if width is None else int(4.2 * width)) for label in labels]
    bars.set_yticks(range(len(groups)), wrapped, fontsize=TEXT - (width is not None))
    bars.set_ylim(len(groups) - 0.5, -0.5)
    bars.set_title(f"virtual time until {target:.0%} accuracy", fontsize=TEXT)
    bars.spines[["top", "right", "bottom"]].set_visible(False)
    bars.set_xticks([])
    bars.tick_params(left=False)
    _panel(axes, groups, "time", scale[1])
    axes.set_xlabel(scale[0])
    axes.set_title("test accuracy (%)", fontsize=TEXT)
    figure.suptitle(f"{text}\n", fontsize=TEXT + 4, weight="bold")
    figure.text(0.5, 0.9, title, ha="center", va="center", fontsize=TEXT, color=GREY)
    _legend(figure, axes)
    return figure


def lines_over_key(groups: Sequence[Group]) -> Figure | None:
    """Draw the table's measure over the last grid key with at least three numbers. There is a line for each method and
    each value of the other keys, with bars of one sample deviation to either side.

    None: there is no such key, or there are more than MOST_LINES lines.
    """
    places = {key: _numbers(groups, key) for key in choice_keys(group.choice for group in groups)}
    if not (keys := [key for key, numbers in places.items() if len(numbers) > 2]):
        return None
    key = keys[-1]
    lines: dict[tuple[str, str], list[tuple[float, Group]]] = {}
    for group in groups:
        rest = replace(group, choice=tuple(pair for pair in group.choice if pair[0] != key))
        lines.setdefault((group.method, rest.setting), []).append((float(str(dict(group.choice)[key])), rest))
    if len(lines) > MOST_LINES:
        return None
    figure, measure = Figure(figsize=(4.5, 3.2), layout="constrained"), groups[0].measure
    axes = figure.subplots()
    labels = series.line_labels([own[0][1] for own in lines.values()])
    for number, (label, own) in enumerate(zip(labels, lines.values(), strict=True)):
        spreads = [(place, group.over(measure, findings.scale(measure))) for place, group in own]
        points = sorted(
            (place, spread.mean, spread.deviation or 0.0) for place, spread in spreads if spread.mean is not None
        )
        x, mean, bars = ([point[column] for point in points] for column in range(3))
        axes.plot(x, mean, label=label, **look(number))
        axes.errorbar(x, mean, bars, fmt="none", ecolor=look(number)["color"], elinewidth=0.8, capsize=3)
        for place, spread in spreads:
            if spread.least:
                axes.annotate("≥", (place, spread.mean), xytext=(0, 5), textcoords="offset points", ha="center")
    if series.far_apart([[min(places[key])], [max(places[key])]]):
        logarithmic(axes, "x")
    axes.set_xticks(sorted(places[key]))
    axes.minorticks_off()
    axes.set_xlabel(key)
    title = findings.TITLES.get(measure, measure)
    figure.suptitle("\n".join(filter(None, (title, _seeds(groups)))), fontsize=TEXT, wrap=True)
    tidy(axes)
    _legend(figure, axes)
    return figure


def _numbers(groups: Sequence[Group], key: str) -> set[float]:
    """Return the values of ``key`` in a grid. The set is empty if a value is not a number."""
    try:
        return {float(str(dict(group.choice).get(key))) for group in groups}
    except ValueError:
        return set()


def delay_tails(groups: Sequence[Group], title: str = "") -> Figure:
    """Draw the share of updates with at least a given delay, over that delay (the CCDF), on two logarithmic axes.

    Very late updates are few. A logarithmic axis shows them. In a histogram their bars would be too small to see.
    """
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    latest = 0
    for number, (group, name) in enumerate(zip(groups, series.line_labels(groups), strict=True)):
        counts = sum((Counter(result.delays) for result in group.results), Counter())
        delays = sorted(delay for delay in counts if delay > 0)
        late = np.cumsum([counts[delay] for delay in reversed(delays)])[::-1] / max(1, counts.total())
        facts = f"mean {group.over('delay_mean').mean or 0.0:.1f}, max {max(counts, default=0)}"
        label = f"{name} ({facts})"
        axes.plot(delays, late, drawstyle="steps-post", label=label, markevery=marks(number), **look(number))
        latest = max(latest, *counts, 0)
    if latest:  # synchronous rounds have no late updates
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set_xlim(left=0.9)
    axes.set_xlabel("delay of an update (server versions)")
    axes.set_ylabel("share at least as late")
    figure.suptitle(title, fontsize=TEXT)
    tidy(axes)
    _legend(figure, axes)
    return figure
