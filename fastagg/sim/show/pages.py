"""``report.html`` of a run or a comparison: a table, interactive pictures, settings, machine and versions."""

from __future__ import annotations

from collections.abc import Sequence

from fastagg import page
from fastagg.facts import facts
from fastagg.sim.many.groups import Group
from fastagg.sim.recipes.config import to_toml
from fastagg.sim.show import series as curves
from fastagg.sim.show.findings import Findings


def comparison_page(groups: Sequence[Group], found: Findings, title: str = "", target: float | None = None) -> str:
    """Return one HTML page about ``groups`` and what they showed. A single run is one group."""
    verdict, *others = found.sentences or [""]
    blocks = [page.heading(verdict)] if verdict else []
    blocks += [page.paragraph(sentence) for sentence in others]
    blocks += [page.table(sheet) for sheet in found.sheets]
    for part, members in curves.few_lines(groups).items():
        blocks += _curves(members, part, target)
    blocks.append(_delays(groups))
    blocks += [page.paragraph(note) for note in found.notes]
    blocks.append(page.table(found.times))
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
    xs = {"version": "server versions", "uploads": "client updates received"}
    factors = dict.fromkeys(xs, 1.0)
    if (scale := curves.time_axis(groups)) is not None:
        xs, factors = {"time": scale[1], **xs}, {"time": scale[0], **factors}
    targets = {r.config.run.target if target is None else target for g in groups for r in g.results}
    goal = 100 * targets.pop() if len(targets) == 1 else None
    points = [{key: _points(group, key, factors[key]) for key in xs} for group in groups]
    labels = curves.line_labels(groups)
    series = [{"name": label, "points": own} for label, own in zip(labels, points, strict=True)]
    title = ": ".join(filter(None, ("Test accuracy", part)))
    far = [key for key in xs if curves.far_apart([own[key]["x"] for own in points])]
    return [page.lines(title, "test accuracy (%)", xs, series, target=goal, log_x=far)]


def _points(group: Group, key: str, factor: float) -> dict[str, list[float]]:
    x, mean, deviation = curves.mean_curve([result.rows for result in group.results], key)
    points = {"x": (factor * x).tolist(), "y": (100 * mean).tolist()}
    if deviation is not None:
        points |= {"low": (100 * (mean - deviation)).tolist(), "high": (100 * (mean + deviation)).tolist()}
    return points


def _delays(groups: Sequence[Group]) -> str:
    series = []
    for group in groups:
        delays, shares = curves.tail(curves.total_delays(group.results))
        series.append({"name": group.label, "points": {"delay": {"x": delays.tolist(), "y": shares.tolist()}}})
    axis = {"delay": "delay of an update (server versions)"}
    title = "Delays: share of updates at least as late"
    return page.lines(title, "share of updates", axis, series, log_x=["delay"], log_y=True)
