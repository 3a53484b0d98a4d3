"""The claims of a table as a picture: each seed's difference, their mean and its interval."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.figure import Figure

from fastagg.sim.claims import Judged
from fastagg.sim.plots import COLOURS

INK = {"shown": COLOURS[2], "tie": "#777777", "reversed": COLOURS[1], "one seed": "#777777"}


def figure(found: Sequence[Judged], title: str = "") -> Figure:
    """Draw one line per claim. If it lies right of zero, the claim holds; left of zero, the opposite holds."""
    texts = [textwrap.fill(one.claim.text, 44) for one in found]
    height = 1.3 + sum(0.28 + 0.2 * (text.count("\n") + 1) for text in texts)
    drawn = Figure(figsize=(9, height), dpi=150, layout="constrained")
    axes = drawn.add_subplot()
    axes.axvline(0, color="#444444", linewidth=1)
    for place, one in enumerate(found):
        difference = one.difference
        ink = INK[difference.verdict]
        if difference.low is not None and difference.high is not None:
            axes.plot([difference.low, difference.high], [place, place], color=ink, linewidth=3, alpha=0.5)
        values = list(difference.pairs.values())
        axes.plot(values, [place] * len(values), "o", color=ink, markersize=4, markerfacecolor="white")
        axes.plot([difference.mean], [place], "D", color=ink, markersize=7)
        where = (max([*values, difference.high or difference.mean]), place)
        axes.annotate(
            difference.verdict, where, xytext=(8, 0), textcoords="offset points", color=ink, va="center", fontsize=10
        )
    axes.set_yticks(range(len(found)), texts, fontsize=10)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.margins(x=0.12)
    scales = {(one.claim.measure, one.claim.scale) for one in found}
    points = all(scale == 100 for _, scale in scales)
    axes.set_xlabel("difference, percentage points" if points else "difference", fontsize=11)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.set_title(title, fontsize=12, wrap=True)
    return drawn
