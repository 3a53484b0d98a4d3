"""The data of pictures and ``report.html``: axes, curves with a band over seeds, and the lines of each picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastagg.sim.comparison.groups import Group, by_setting, choice_keys, setting_text
from fastagg.sim.runs.metrics import seconds, unit_text

MOST_LINES = 6  # the most lines in a picture
FAR = 8  # the x axis is logarithmic if the longest curve is more than this many times as long as the shortest curve
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def time_scale(longest: float, unit: str) -> tuple[str, float]:
    """Return the label of an axis of virtual times, and the factor from times in ``unit`` to numbers on this axis.
    ``longest``: the largest of the times, in ``unit``."""
    if not (known := seconds(unit)):
        return f"virtual time ({unit_text(unit)})", 1.0
    name, size = next(pair for pair in UNITS if longest * known >= 2 * pair[1] or pair[1] == 1)
    return f"virtual time ({name})", known / size


def x_axes(groups: Sequence[Group]) -> dict[str, tuple[str, float]]:
    """Return the x axes for accuracy: the label and the factor of an axis, by the axis's field of EvaluationRow.

    There is no axis of time if the runs have different units of time. There are axes of bytes if encodings differ.
    """
    runs = [result for group in groups for result in group.results]
    units = {result.unit for result in runs}
    times = {} if len(units) > 1 else {"time": time_scale(max(row.time for r in runs for row in r.rows), units.pop())}
    how = [run.config.encoding for run in runs]
    up, down = {(each.format, each.share, each.values) for each in how}, {each.download for each in how}
    sent = {"bytes_up": ("megabytes from clients", 1e-6)} if len(up) > 1 else {}
    sent |= {"bytes_down": ("megabytes to clients", 1e-6)} if len(down) > 1 else {}
    return {**times, "version": ("server versions", 1.0), "uploads": ("client updates received", 1.0), **sent}


def far_apart(xs: Sequence[Sequence[float] | np.ndarray]) -> bool:
    """Return whether some curves end so much earlier than others that they need a logarithmic x axis."""
    ends = [float(x[-1]) for x in xs]
    return min(ends) > 0 and max(ends) > FAR * min(ends)


def mean_curve(group: Group, field: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return values x of ``field``, the mean accuracy at x in percent, and its sample deviation (None for one seed).

    Seeds are evaluated at different x, so each curve is interpolated linearly. The mean ends at the end of the shortest
    curve, because from there on fewer seeds would be left. The arrays are [points].
    """
    xs = [np.array([getattr(row, field) for row in result.rows], dtype=float) for result in group.results]
    x = np.unique(np.concatenate(xs))
    x = x[x <= min(own[-1] for own in xs)]
    ys = (np.interp(x, own, [row.accuracy for row in r.rows]) for own, r in zip(xs, group.results, strict=True))
    y = 100 * np.stack(list(ys))
    return x, y.mean(axis=0), y.std(axis=0, ddof=1) if len(xs) > 1 else None


def line_labels(groups: Sequence[Group]) -> list[str]:
    """Return labels that distinguish the groups of one picture: the method, and the keys in which settings differ."""
    keys = choice_keys(group.choice for group in groups)
    varied = {key for key in keys if len({repr(dict(group.choice).get(key)) for group in groups}) > 1}
    several = len({group.method for group in groups}) > 1
    labels = []
    for group in groups:
        setting = setting_text(group.choice, tuple(pair for pair in group.choice if pair[0] in varied))
        labels.append(", ".join(filter(None, (group.method if several or not setting else "", setting))))
    return labels


def few_lines(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Divide the groups by grid keys until no picture has more than MOST_LINES lines, or no key is left.

    Returns the groups of each picture by the picture's name. The name is empty if there is only one picture.
    """
    deepest = max(len(group.choice) for group in groups) if len(by_setting(groups)) > 1 else 0
    for depth in range(deepest + 1):
        parts: dict[str, list[Group]] = {}
        for group in groups:
            parts.setdefault(setting_text(group.choice, group.choice[:depth]), []).append(group)
        if max(map(len, parts.values())) <= MOST_LINES:
            break
    return parts
