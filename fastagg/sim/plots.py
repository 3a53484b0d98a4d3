"""Pictures of runs. ``Figure`` without pyplot draws through Agg: no display and no global state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastagg.sim.metrics import unit_text
from fastagg.sim.output import replace_file

if TYPE_CHECKING:
    from fastagg.sim.result import Result

# Okabe and Ito's colours, distinct for colour-blind readers too; dashes tell lines apart in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")


def accuracy_over_time(results: Sequence[Result], path: Path, title: str = "") -> None:
    """Write a PNG (1350 x 825 pixels) of test accuracy over virtual time, one line per run."""
    save(accuracy_figure(results, title), path)


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` as a PNG, whole or not at all."""
    replace_file(path, lambda temporary: figure.savefig(temporary, format="png"))


def accuracy_figure(results: Sequence[Result], title: str = "") -> Figure:
    """Draw test accuracy over virtual time; a single run is titled with what its recipe is about.

    Runs whose delay models have different units share no time: they are drawn over client updates received.
    """
    units = {result.unit for result in results}
    timed = len(units) == 1
    figure = Figure(figsize=(9, 5.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, result in enumerate(results):
        axes.plot(
            [row.time if timed else row.uploads for row in result.rows],
            [100 * row.accuracy for row in result.rows],
            label=result.label,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number // len(COLOURS) % len(DASHES)],
            linewidth=1.8,
        )
    targets = {result.config.run.target for result in results}
    if len(targets) == 1:
        target = 100 * targets.pop()
        axes.axhline(target, color="#888888", linewidth=1, linestyle=(0, (2, 3)), label=f"target {target:g}%")
    x_label = f"virtual time ({unit_text(units.pop())})" if timed else "client updates received"
    axes.set_xlabel(x_label, fontsize=12)
    axes.set_ylabel("test accuracy (%)", fontsize=12)
    axes.set_ylim(0, 101)
    axes.set_xlim(left=0)
    axes.tick_params(labelsize=11)
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title or (results[0].config.about if len(results) == 1 else ""), fontsize=12, wrap=True)
    legend_below(figure, axes)
    return figure


def legend_below(figure: Figure, axes: Axes, letters: int = 60) -> None:
    """Put the legend of ``axes``' lines below all axes, where no curve can run under it; ``letters`` fit in a line."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]  # matplotlib's own
    longest = max(len(str(line.get_label())) for line in lines)
    columns = max(1, min(len(lines), letters // (longest + 6)))
    figure.legend(handles=lines, loc="outside lower center", ncols=columns, fontsize=11, frameon=False)
