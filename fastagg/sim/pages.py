"""``report.html`` of a run or a comparison: a table, interactive pictures, settings, machine and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastagg import page
from fastagg.facts import facts
from fastagg.sim import sweep_plots, sweep_tables
from fastagg.sim.config import to_toml
from fastagg.sim.groups import Group
from fastagg.sim.metrics import ACTIVITIES, unit_text
from fastagg.sim.plots import zoomed


def comparison_page(
    groups: Sequence[Group], title: str = "", target: float | None = None, baseline: str | None = None
) -> str:
    """Return one HTML page about ``groups``. A single run is one group."""
    headings, rows = sweep_tables.rows(groups, target, baseline)
    blocks = [page.table(headings, rows, sweep_tables.caption(groups, baseline))]
    if (crossed := sweep_tables.pivot(groups)) is not None:
        blocks.append(page.table(*crossed, sweep_tables.pivot_caption(groups)))
    for part, members in sweep_plots.few_lines(groups).items():
        blocks += _curves(members, part, target)
    blocks.append(_delays(groups))
    blocks.append(page.heading("Where the time goes"))
    blocks.append(
        page.table(["method", *ACTIVITIES, "other", "total"], _times(groups), "Wall seconds, mean over seeds.")
    )
    blocks.append(page.heading("Settings and machine"))
    for group in groups:
        blocks.append(page.text(f"{group.label}: config.toml", to_toml(group.results[0].config)))
    blocks.append(page.settings("Machine and versions", facts()))
    labels = ", ".join(dict.fromkeys(group.method for group in groups))
    return page.page(title or labels, blocks, _note(groups))


def _note(groups: Sequence[Group]) -> str:
    seeds = [result.summary["seed"] for group in groups for result in group.results]
    runs = f"{len(seeds)} runs" if len(seeds) > 1 else "One run"
    several = "seeds" if len(set(seeds)) > 1 else "seed"
    return f"{runs}, {several} {', '.join(map(str, sorted(set(seeds))))}."


def _curves(groups: Sequence[Group], part: str, target: float | None) -> list[str]:
    units = {result.unit for group in groups for result in group.results}
    xs = {"version": "server versions", "uploads": "client updates received"}
    if len(units) == 1:
        xs = {"time": f"virtual time ({unit_text(units.pop())})", **xs}
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    goal = 100 * targets.pop() if len(targets) == 1 else None
    points = [{key: _points(group, key) for key in xs} for group in groups]
    labels = sweep_plots.line_labels(groups)
    series = [{"name": label, "points": own} for label, own in zip(labels, points, strict=True)]
    title = ": ".join(filter(None, ("Test accuracy", part)))
    far = [key for key in xs if sweep_plots.far_apart([own[key]["x"] for own in points])]
    ends = zoomed([np.array(own[key]["y"]) for own in points for key in xs], goal)
    return [page.lines(title, "test accuracy (%)", xs, series, target=goal, log_x=far, ends=ends)]


def _points(group: Group, key: str) -> dict[str, Any]:
    x, mean, deviation = sweep_plots.mean_curve([result.rows for result in group.results], key)
    points = {"x": x.tolist(), "y": (100 * mean).tolist()}
    if deviation is not None:
        points |= {"low": (100 * (mean - deviation)).tolist(), "high": (100 * (mean + deviation)).tolist()}
    return points


def _delays(groups: Sequence[Group]) -> str:
    series = []
    for group in groups:
        delays, shares = sweep_plots.tail(sweep_plots.total_delays(group.results))
        series.append({"name": group.label, "points": {"delay": {"x": delays.tolist(), "y": shares.tolist()}}})
    axis = {"delay": "delay of an update (server versions)"}
    title = "Delays: share of updates at least as late"
    return page.lines(title, "share of updates", axis, series, log_x=["delay"], log_y=True)


def _times(groups: Sequence[Group]) -> list[list[str]]:
    lines = []
    for group in groups:
        wall = group.wall_seconds()
        lines.append([group.label, *(f"{wall[name]:.2f}" for name in (*ACTIVITIES, "other", "total"))])
    return lines
