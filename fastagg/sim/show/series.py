"""What the pictures and ``report.html`` draw: curves with a band over seeds, which lines share a picture, delays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastagg.sim.many.groups import Group, choice_keys, setting_text
from fastagg.sim.one.metrics import Row, seconds, unit_text
from fastagg.sim.one.result import Result

MOST_LINES = 6  # in one picture
FAR = 8  # if the longest curve is so many times as long as the shortest, the time axis is logarithmic
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def time_scale(longest: float, unit: str) -> tuple[float, str]:
    """Return what to multiply virtual times by for an axis that ends at ``longest``, and the axis' label."""
    if not (known := seconds(unit)):
        return 1.0, f"virtual time ({unit_text(unit)})"
    name, size = next(pair for pair in UNITS if longest * known >= 2 * pair[1] or pair[1] == 1)
    return known / size, f"virtual time ({name})"


def time_axis(groups: Sequence[Group]) -> tuple[float, str] | None:
    """Return the factor and the label of an axis of virtual time; None if runs have different units of it."""
    runs = [result for group in groups for result in group.results]
    units = {result.unit for result in runs}
    return time_scale(max(row.time for run in runs for row in run.rows), units.pop()) if len(units) == 1 else None


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


def tail(delays: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the delays of 1 and more, ascending, and for each the share of all updates with at least that delay."""
    total = sum(delays.values())
    values = sorted(delay for delay in delays if delay > 0)
    counts = np.array([delays[value] for value in values], dtype=float)
    return np.array(values), counts[::-1].cumsum()[::-1] / max(1, total)


def total_delays(results: Sequence[Result]) -> dict[int, int]:
    total: dict[int, int] = {}
    for result in results:
        for delay, uploads in result.delays.items():
            total[delay] = total.get(delay, 0) + uploads
    return total


def names_of(alike: Sequence[Group], all_groups: int) -> str:
    """Return what to call groups that share a line, of ``all_groups`` in the picture."""
    methods = list(dict.fromkeys(group.method for group in alike))
    if len(alike) == all_groups and len(methods) < all_groups:
        return "all runs" if len(methods) > 3 else ", ".join(methods)
    first = "; ".join(group.label for group in alike[:2])
    return first if len(alike) <= 2 else f"{first}; {len(alike) - 2} more"
