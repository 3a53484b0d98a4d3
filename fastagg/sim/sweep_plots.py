"""Pictures of a comparison: curves with a band over seeds, lines over a key, heat maps over two, delay histograms."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastagg.sim.groups import Group, choice_keys, setting_text
from fastagg.sim.metrics import Row, unit_text
from fastagg.sim.plots import COLOURS, DASHES, legend_below
from fastagg.sim.result import Result
from fastagg.sim.sweep import SETTING

MOST_LINES = 6  # in one picture
MOST_PANELS = 12
PANEL_LETTERS = 54  # that fit above a panel of delays.png
MEASURES = {"last5_accuracy_mean": "test accuracy (%)", "best_accuracy": "best test accuracy (%)"}


def curves(groups: Sequence[Group], labels: Sequence[str], title: str = "", target: float | None = None) -> Figure:
    """Draw test accuracy over virtual time, server versions and client updates: the mean and a band over seeds.

    The band is one sample deviation to either side. Seeds are evaluated at moments of their own: their curves are
    joined by straight lines, and the mean ends where the first one ends. Virtual time is left out when the runs have
    different units of it.
    """
    units = {result.unit for group in groups for result in group.results}
    panels = [("version", "server versions"), ("uploads", "client updates received")]
    if len(units) == 1:
        panels.insert(0, ("time", f"virtual time ({unit_text(units.pop())})"))
    figure = Figure(figsize=(5 * len(panels), 5), dpi=150, layout="constrained")
    all_axes: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    for axes, (field, text) in zip(all_axes, panels, strict=True):
        for number, (group, label) in enumerate(zip(groups, labels, strict=True)):
            x, mean, deviation = mean_curve([result.rows for result in group.results], field)
            colour = COLOURS[number % len(COLOURS)]
            dash = DASHES[number // len(COLOURS) % len(DASHES)]
            axes.plot(x, 100 * mean, label=label, color=colour, linestyle=dash, linewidth=1.6)
            if deviation is not None:
                low, high = 100 * (mean - deviation), 100 * (mean + deviation)
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        if len(targets) == 1:
            goal = 100 * next(iter(targets))
            axes.axhline(goal, color="#888888", linewidth=1, linestyle=(0, (2, 3)), label=f"target {goal:g}%")
        axes.set_xlabel(text, fontsize=12)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 101)
        _plain(axes)
    all_axes[0].set_ylabel("test accuracy (%)", fontsize=12)
    seeds = max(len(group.results) for group in groups)
    note = f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else ""
    figure.suptitle("\n".join(filter(None, (title, note))), fontsize=12, wrap=True)
    legend_below(figure, all_axes[0], letters=45 * len(panels))
    return figure


def mean_curve(runs: Sequence[Sequence[Row]], field: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return x, the mean accuracy there, and its sample deviation (None for a single run); each [points]."""
    xs = [np.array([getattr(row, field) for row in rows], dtype=float) for rows in runs]
    ys = [np.array([row.accuracy for row in rows]) for rows in runs]
    end = min(x[-1] for x in xs)
    x = np.unique(np.concatenate(xs))
    x = x[x <= end]
    y = np.stack([np.interp(x, own_x, own_y) for own_x, own_y in zip(xs, ys, strict=True)])
    return x, y.mean(axis=0), y.std(axis=0, ddof=1) if len(runs) > 1 else None


def line_labels(groups: Sequence[Group]) -> list[str]:
    """Return what tells the groups of one picture apart: the method and what of the setting is not common to all."""
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
    """Part the groups by grid keys, the first ones first, until no picture has more than MOST_LINES lines.

    Returns the groups of each picture by what it is called, "" when one picture does.
    """
    for depth in range(max(len(group.choice) for group in groups) + 1):
        parts: dict[str, list[Group]] = {}
        for group in groups:
            parts.setdefault(setting_text(group.choice, group.choice[:depth]), []).append(group)
        if max(map(len, parts.values())) <= MOST_LINES:
            break
    return parts


def lines_over_key(groups: Sequence[Group]) -> Figure | None:
    """Draw what the table is about over the one grid key with three numbers or more: a line per method, a bar for one
    sample deviation to either side. None when there is no such key, or more keys than one.
    """
    keys = choice_keys(group.choice for group in groups)
    varied = [key for key in keys if len({repr(dict(group.choice).get(key)) for group in groups}) > 1]
    places = [_place(group, varied[0]) if len(varied) == 1 else None for group in groups]
    if None in places or len(set(places)) < 3:
        return None
    (key,) = varied
    figure = Figure(figsize=(7, 5), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    for number, method in enumerate(dict.fromkeys(group.method for group in groups)):
        found = [(place, g.ours()) for place, g in zip(places, groups, strict=True) if g.method == method]
        own = sorted((pair for pair in found if pair[1].mean is not None), key=lambda pair: pair[0] or 0.0)
        x, mean = [place for place, _ in own], [spread.mean for _, spread in own]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(x, mean, label=method, color=colour, linewidth=1.6, marker="o", markersize=4)
        bars = [spread.deviation or 0.0 for _, spread in own]
        axes.errorbar(x, mean, bars, fmt="none", ecolor=colour, elinewidth=0.8, capsize=3)
    measure = groups[0].paper.measure
    axes.set_xlabel(key, fontsize=12)
    axes.set_ylabel(MEASURES.get(measure, measure.replace("_", " ")), fontsize=12)
    seeds = max(len(group.results) for group in groups)
    figure.suptitle(f"mean and one deviation to either side over {seeds} seeds" if seeds > 1 else "", fontsize=12)
    _plain(axes)
    legend_below(figure, axes, letters=60)
    return figure


def _place(group: Group, key: str) -> float | None:
    try:
        return float(str(dict(group.choice).get(key)))
    except ValueError:
        return None


def heat_map(groups: Sequence[Group]) -> Figure | None:
    """Draw the mean accuracy over the first two grid keys with more than one value, one panel per method.

    None when there are no two such keys. Over further keys the best value is taken.
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
    figure = Figure(figsize=(wide * columns + 1.2, high * lines + 0.4), dpi=150, layout="constrained")
    all_axes: Any = figure.subplots(lines, columns, squeeze=False)
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


def delay_histograms(groups: Sequence[Group]) -> Figure:
    """Draw how the delays of all updates are spread; the bins double in width.

    Groups whose updates had the very same delays, as methods in one world have, share a panel.
    """
    panels: dict[tuple[tuple[int, int], ...], list[Group]] = {}
    for group in groups:
        panels.setdefault(tuple(sorted(total_delays(group.results).items())), []).append(group)
    shown = list(panels.values())[:MOST_PANELS]
    counts = [dict(found) for found in list(panels)[:MOST_PANELS]]
    bins = max((_bin(delay) for found in counts for delay in found), default=0) + 1
    columns = min(len(shown), 3)
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.0 * lines + 0.3), dpi=150, layout="constrained")
    all_axes: Any = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for number, (axes, alike, found) in enumerate(zip(all_axes.flat, shown, counts, strict=False)):
        group = alike[0]
        shares = np.zeros(bins)
        for delay, uploads in found.items():
            shares[_bin(delay)] += uploads
        axes.bar(range(bins), 100 * shares / max(1, shares.sum()), color=COLOURS[0], width=0.85)
        facts = ", ".join(
            f"{name} {value:.{digits}f}"
            for name, value, digits in (
                ("mean", group.over("delay_mean").mean or 0.0, 1),
                ("median", group.over("delay_median").mean or 0.0, 1),
                ("max", max(result.summary["delay_max"] for result in group.results), 0),
            )
        )
        names = textwrap.fill(_names(alike, len(groups)), PANEL_LETTERS)
        axes.set_title(f"{names}\n{facts}", fontsize=10)
        axes.set_xticks(range(bins), [_bin_text(b) for b in range(bins)], rotation=45, ha="right", fontsize=9)
        axes.tick_params(labelbottom=number + columns >= len(shown))
        _plain(axes)
    for axes in list(all_axes.flat)[len(shown) :]:
        axes.remove()
    more = f" (the first {MOST_PANELS} of {len(panels)})" if len(panels) > MOST_PANELS else ""
    figure.supxlabel(f"delay of an update (server versions){more}", fontsize=11)
    figure.supylabel("updates (%)", fontsize=11)
    return figure


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


def _bin(delay: int) -> int:
    return delay.bit_length()  # 0, 1, 2-3, 4-7, 8-15, ...


def _bin_text(number: int) -> str:
    low, high = (1 << number) >> 1, max(0, (1 << number) - 1)
    return str(low) if low == high else f"{low}–{high}"


def _plain(axes: Axes) -> None:
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
