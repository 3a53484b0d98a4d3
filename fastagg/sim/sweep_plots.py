"""Pictures of a comparison: curves with a band over seeds, lines over a key, heat maps over two keys, delays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastagg.sim import findings
from fastagg.sim.groups import Group, choice_keys, name_of, setting_text, speedups
from fastagg.sim.metrics import Row, duration
from fastagg.sim.plots import (
    GREY,
    TEXT,
    band,
    goal,
    legend_below,
    logarithmic,
    look,
    marks,
    tidy,
    time_scale,
    whole,
)
from fastagg.sim.result import Result
from fastagg.sim.sweep import SETTING

MOST_LINES = 6  # in one picture
FAR = 8  # if the longest curve is so many times as long as the shortest, the time axis is logarithmic
MEASURES = {"last5_accuracy_mean": "test accuracy (%)", "best_accuracy": "best test accuracy (%)"}


def curves(groups: Sequence[Group], labels: Sequence[str], title: str = "", target: float | None = None) -> Figure:
    """Draw test accuracy over virtual time, server versions and client updates: the mean and a band over seeds.

    The band is one sample deviation to either side. Seeds are evaluated at different moments, so their curves are
    joined by straight lines. A seed that has ended keeps its last accuracy. If runs have different units of virtual
    time, the picture over it is left out.
    """
    panels = [("version", "server versions", 1.0), ("uploads", "client updates received", 1.0)]
    if (scale := time_axis(groups)) is not None:
        panels.insert(0, ("time", scale[1], scale[0]))
    figure = Figure(figsize=(3 * len(panels), 3), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    wanted = next(iter(targets)) if len(targets) == 1 else None
    shown: list[np.ndarray] = []
    for axes, (field, text, factor) in zip(all_axes, panels, strict=True):
        shown += _panel(axes, groups, labels, field, factor)
        if wanted is not None:
            goal(axes, wanted)
        axes.set_xlabel(text)
        tidy(axes)
    whole(all_axes[0], shown, None if wanted is None else 100 * wanted)
    all_axes[0].set_ylabel("test accuracy (%)", fontsize=TEXT)
    seeds = max(len(group.results) for group in groups)
    note = f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else ""
    figure.suptitle("\n".join(filter(None, (title, note))), fontsize=TEXT, wrap=True)
    legend_below(figure, all_axes[0], letters=38 * len(panels))
    return figure


def _panel(axes: Axes, groups: Sequence[Group], labels: Sequence[str], field: str, factor: float) -> list[np.ndarray]:
    """Draw the mean accuracy over one ``field`` of the rows, with a band over seeds; return the curves in percent."""
    shown = []
    for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
        x, mean, deviation = mean_curve([result.rows for result in group.results], field)
        x = factor * x
        shown.append(100 * mean)
        axes.plot(x, shown[-1], label=label, markevery=marks(number, len(x), len(groups)), **look(number))
        if deviation is not None:
            band(axes, x, 100 * (mean - deviation), 100 * (mean + deviation), look(number)["color"])
    if far_apart([np.asarray(line.get_xdata()) for line in axes.get_lines()]):
        logarithmic(axes, "x")
    else:
        axes.set_xlim(left=0)
    return shown


def time_axis(groups: Sequence[Group]) -> tuple[float, str] | None:
    """Return the factor and the label of an axis of virtual time; None if runs have different units of it."""
    runs = [result for group in groups for result in group.results]
    units = {result.unit for result in runs}
    return time_scale(max(row.time for run in runs for row in run.rows), units.pop()) if len(units) == 1 else None


def to_target(
    groups: Sequence[Group], labels: Sequence[str], title: str, target: float | None, baseline: str | None
) -> Figure | None:
    """Draw who reaches the target how soon: the time of each method as a bar with its ratio to ``baseline``, and the
    accuracy over time. The heading is the verdict; ``title`` stands below it. None if there is no verdict.
    """
    text, scale = findings.verdict(groups, target, baseline), time_axis(groups)
    if not text or scale is None or not 1 < len(groups) <= MOST_LINES:
        return None
    figure = Figure(figsize=(9, 1.9 + 0.42 * max(4, len(groups))), layout="constrained")
    bars, axes = figure.subplots(1, 2, width_ratios=(1.15, 1))
    ratios = speedups(groups, baseline, target)
    base = name_of(groups, baseline)
    times = [findings.mean_time(group, target) for group in groups]
    longest = max(time for time in times if time is not None)
    for place, (group, label, time, ratio) in enumerate(zip(groups, labels, times, ratios, strict=True)):
        words = "not reached with every seed"
        if time is not None:
            bars.barh(place, time, height=0.62, color=look(place)["color"])
            words = duration(time, group.results[0].unit)
            if ratio is not None and label != base:
                faster = ratio >= 1
                words += f": {findings.factor(ratio if faster else 1 / ratio)} {'sooner' if faster else 'later'}"
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
    shown = _panel(axes, groups, labels, "time", scale[0])
    goal(axes, wanted)
    whole(axes, shown, 100 * wanted)
    tidy(axes)
    axes.set_xlabel(scale[1])
    axes.set_title("test accuracy (%)", fontsize=TEXT)
    figure.suptitle(f"{text}\n", fontsize=TEXT + 4, weight="bold")
    figure.text(0.5, 0.9, title, ha="center", va="center", fontsize=TEXT, color=GREY)
    legend_below(figure, axes, letters=100)
    return figure


def far_apart(xs: Sequence[Sequence[float] | np.ndarray]) -> bool:
    """Return whether some curves end so much earlier than others that only a logarithmic x axis shows both."""
    ends = [float(x[-1]) for x in xs]
    return min(ends) > 0 and max(ends) > FAR * min(ends)


def mean_curve(runs: Sequence[Sequence[Row]], field: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return x, the mean accuracy there, and its sample deviation (None for a single run); each [points]."""
    xs = [np.array([getattr(row, field) for row in rows], dtype=float) for rows in runs]
    ys = [np.array([row.accuracy for row in rows]) for rows in runs]
    x = np.unique(np.concatenate(xs))
    y = np.stack([np.interp(x, own_x, own_y) for own_x, own_y in zip(xs, ys, strict=True)])
    return x, y.mean(axis=0), y.std(axis=0, ddof=1) if len(runs) > 1 else None


def line_labels(groups: Sequence[Group]) -> list[str]:
    """Return labels that distinguish the groups of one picture: the method, and what differs between settings."""
    keys = choice_keys(group.choice for group in groups)
    common = {key for key in keys if len({repr(dict(group.choice).get(key)) for group in groups}) == 1}
    several = len({group.method for group in groups}) > 1
    settings = [
        setting_text(group.choice, tuple(pair for pair in group.choice if pair[0] not in common)) for group in groups
    ]
    return [
        ", ".join(filter(None, (g.method if several or not s else "", s)))
        for g, s in zip(groups, settings, strict=True)
    ]


def few_lines(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Divide the groups by grid keys, the first key first, until no picture has more than MOST_LINES lines.

    Returns the groups of each picture by the picture's name; "" if there is only one.
    """
    for depth in range(max(len(group.choice) for group in groups) + 1):
        parts: dict[str, list[Group]] = {}
        for group in groups:
            parts.setdefault(setting_text(group.choice, group.choice[:depth]), []).append(group)
        if max(map(len, parts.values())) <= MOST_LINES:
            break
    return parts


def lines_over_key(groups: Sequence[Group]) -> Figure | None:
    """Draw the table's measure over the only grid key with at least three numbers: a line per method, with bars of one
    sample deviation to either side. None if there is no such key, or more than one grid key.
    """
    keys = choice_keys(group.choice for group in groups)
    varied = [key for key in keys if len({repr(dict(group.choice).get(key)) for group in groups}) > 1]
    if len(varied) != 1:
        return None
    (key,) = varied
    places = [place for group in groups if (place := _place(group, key)) is not None]
    if len(places) < len(groups) or len(set(places)) < 3:
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
    axes.set_xlabel(key)
    axes.set_ylabel(MEASURES.get(measure, measure.replace("_", " ")))
    seeds = max(len(group.results) for group in groups)
    figure.suptitle(f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else "", fontsize=TEXT)
    tidy(axes)
    legend_below(figure, axes, letters=60)
    return figure


def _place(group: Group, key: str) -> float | None:
    try:
        return float(str(dict(group.choice).get(key)))
    except ValueError:
        return None


def heat_map(groups: Sequence[Group]) -> Figure | None:
    """Draw the mean accuracy over the first two grid keys with more than one value, one panel per method.

    None if there are no two such keys. If there are more keys, the best value over them is shown.
    """
    keys = choice_keys(group.choice for group in groups)
    values = {key: list(dict.fromkeys(repr(dict(group.choice).get(key)) for group in groups)) for key in keys}
    varied = [key for key, found in values.items() if len(found) > 1 and key != SETTING]
    if len(varied) < 2 or len({tuple(dict(group.choice)) for group in groups}) > 1:
        return None
    down, across = varied[:2]
    methods = list(dict.fromkeys(group.method for group in groups))
    tables = {method: np.full((len(values[down]), len(values[across])), np.nan) for method in methods}
    for group in groups:
        chosen = dict(group.choice)
        place = values[down].index(repr(chosen[down])), values[across].index(repr(chosen[across]))
        mean = group.over("last5_accuracy_mean").mean
        if mean is not None:
            tables[group.method][place] = np.fmax(tables[group.method][place], 100 * mean)
    columns = min(len(methods), 3)
    lines = -(-len(methods) // columns)
    wide, high = max(3.2, 0.75 * len(values[across]) + 1.2), max(2.6, 0.55 * len(values[down]) + 1.2)
    figure = Figure(figsize=(wide * columns + 1.2, high * lines + 0.4), layout="constrained")
    all_axes = figure.subplots(lines, columns, squeeze=False)
    lowest = min(float(np.nanmin(table)) for table in tables.values())
    highest = max(float(np.nanmax(table)) for table in tables.values())
    image = None
    for axes, method in zip(all_axes.flat, methods, strict=False):
        image = axes.imshow(tables[method], cmap="viridis", vmin=lowest, vmax=highest, aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(tables[method]):
            if not math.isnan(value):
                dark = value < (lowest + highest) / 2
                axes.text(column, row, f"{value:.1f}", ha="center", va="center", color="white" if dark else "black")
        axes.set_xticks(range(len(values[across])), [text.strip("'") for text in values[across]])
        axes.set_yticks(range(len(values[down])), [text.strip("'") for text in values[down]])
        axes.set_xlabel(keys[across])
        axes.set_ylabel(keys[down])
        axes.set_title(method, fontsize=11)
    used, spare = list(all_axes.flat)[: len(methods)], list(all_axes.flat)[len(methods) :]
    for axes in spare:
        axes.remove()
    figure.colorbar(image, ax=used, label="test accuracy (%), mean over seeds")  # type: ignore[arg-type]
    return figure


def delay_tails(groups: Sequence[Group]) -> Figure:
    """Draw the share of updates with at least a given delay, over that delay (the CCDF), on two logarithmic axes.

    Very late updates are few. A logarithmic axis shows them; in a histogram their bars would be too small to see.
    Groups with exactly the same delays share a line, for example several methods with the same clients and seed.
    """
    worlds: dict[tuple[tuple[int, int], ...], list[Group]] = {}
    for group in groups:
        worlds.setdefault(tuple(sorted(total_delays(group.results).items())), []).append(group)
    shown = list(worlds.items())[:MOST_LINES]
    figure = Figure(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for found, alike in shown:
        number = groups.index(alike[0])  # the look that this method has in the other pictures
        delays, shares = tail(dict(found))
        facts = f"mean {alike[0].over('delay_mean').mean or 0.0:.1f}, max {max(dict(found), default=0)}"
        names = f"{_names(alike, len(groups))} ({facts})"
        if len(delays):
            every = marks(number, len(delays), len(shown))
            axes.plot(delays, shares, drawstyle="steps-post", label=names, markevery=every, **look(number))
        else:
            axes.plot([], [], label=f"{names}: no update was late", **look(number))
    if any(delay > 0 for found, _ in shown for delay, _ in found):  # rounds have no late updates
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set_xlim(left=0.9)
    more = f" (the first {MOST_LINES} of {len(worlds)})" if len(worlds) > MOST_LINES else ""
    axes.set_xlabel(f"delay of an update (server versions){more}")
    axes.set_ylabel("share of updates at least as late")
    tidy(axes)
    legend_below(figure, axes)
    return figure


def tail(delays: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the delays of 1 and more, ascending, and for each the share of all updates with at least that delay."""
    total = sum(delays.values())
    values = sorted(delay for delay in delays if delay > 0)
    counts = np.array([delays[value] for value in values], dtype=float)
    return np.array(values), counts[::-1].cumsum()[::-1] / max(1, total)


def _names(alike: Sequence[Group], all_groups: int) -> str:
    methods = list(dict.fromkeys(group.method for group in alike))
    if len(alike) == all_groups and len(methods) < all_groups:
        return "all runs" if len(methods) > 3 else ", ".join(methods)
    first = "; ".join(group.label for group in alike[:2])
    return first if len(alike) <= 2 else f"{first}; {len(alike) - 2} more"


def total_delays(results: Sequence[Result]) -> dict[int, int]:
    total: dict[int, int] = {}
    for result in results:
        for delay, uploads in result.delays.items():
            total[delay] = total.get(delay, 0) + uploads
    return total
