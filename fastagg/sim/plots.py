"""The style of all pictures, and the picture of a run. ``Figure`` without pyplot: no display and no global state.

The pictures are made for a paper. Type is small, at the size of print. Lines differ in colour, dashes and marker, so
that they can be told apart in grey print. Bands have an edge, so that they stay readable where they cross. Accuracy
begins at zero, so that noise does not look like a difference.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image  # matplotlib needs it, too

from fastagg import _checks
from fastagg._types import Plain
from fastagg.page import COLOURS
from fastagg.sim.metrics import seconds, unit_text
from fastagg.sim.output import replace_file

if TYPE_CHECKING:
    from fastagg.sim.result import Result

FORMATS = ("png", "pdf", "svg")
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 200  # of PNG
TEXT = 9  # in points, at the width that the picture has in print
GREY = "#777777"
UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
_LETTERS = 66  # that fit in a line of a run's picture


def check_format(name: str) -> str:
    """Return ``name`` if it is a format for pictures. ConfigError otherwise."""
    return _checks.one_of("--format", name, FORMATS)


def look(number: int) -> Plain:
    """Return the style of line ``number`` (from 0) of a picture: its colour, dashes and marker."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number + 2 * (number // len(MARKERS))) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 3.6,
        "markeredgewidth": 0.6,
        "markeredgecolor": "white",
        "linewidth": 1.3,
    }


def marks(number: int, points: int, lines: int = 1) -> tuple[int, int]:
    """Return which points of a line of ``points`` get a marker: about eight, at other places than on the next line."""
    every = max(1, points // 8)
    return (number * every // max(1, lines)) % every, every


def band(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Shade between ``low`` and ``high``, with a thin edge. So bands can be told apart where they cross."""
    axes.fill_between(x, low, high, facecolor=(colour, 0.12), edgecolor=(colour, 0.35), linewidth=0.4)


def whole(axes: Axes, curves: Sequence[np.ndarray], target: float | None = None) -> None:
    """Let the y axis show accuracies in percent from zero to the highest point of ``curves`` [points] or the target."""
    high = max(float(curve.max()) for curve in curves)
    axes.set_ylim(0, min(100.5, 1.08 * max(high, target or 0.0, 1.0)))


def time_scale(longest: float, unit: str) -> tuple[float, str]:
    """Return what to multiply virtual times by for an axis that ends at ``longest``, and the axis' label."""
    if not (known := seconds(unit)):
        return 1.0, f"virtual time ({unit_text(unit)})"
    name, size = next(pair for pair in UNITS if longest * known >= 2 * pair[1] or pair[1] == 1)
    return known / size, f"virtual time ({name})"


def tidy(axes: Axes) -> None:
    """Set what all axes have in common."""
    axes.grid(color="#e2e2e2", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    axes.tick_params(labelsize=TEXT - 1, width=0.6, length=2.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(TEXT)


def logarithmic(axes: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with ordinary numbers such as 10, not powers of ten."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    # Without "mask" a line from zero would be drawn flat up to its second point.
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", nonpositive="mask")
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def goal(axes: Axes, target: float) -> None:
    """Draw the target accuracy, given as 0 to 1."""
    axes.axhline(100 * target, color=GREY, linewidth=0.8, linestyle=(0, (2, 3)), label=f"target {100 * target:g}%")


def save(figure: Figure, path: Path) -> None:
    """Write ``figure`` in the format of the path's suffix. The file is written completely or not at all."""
    kind = path.suffix[1:]
    if kind == "png":
        replace_file(path, lambda temporary: _write_png(figure, temporary))
    else:
        replace_file(path, lambda temporary: figure.savefig(temporary, format=kind, dpi=DPI))


def _write_png(figure: Figure, path: Path) -> None:
    """Write the pixels of ``savefig``, in less time: savefig lays the text out twice, and compresses a channel of
    transparency that no picture has."""
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    Image.fromarray(pixels).save(path, format="png", dpi=(DPI, DPI), compress_level=1)


def accuracy_figure(result: Result) -> Figure:
    """Draw a run's test accuracy over virtual time, below its recipe's purpose (a PNG has 1000 x 640 pixels)."""
    width, height = 5.0, 3.2
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    factor, label = time_scale(max(row.time for row in result.rows), result.unit)
    x = [factor * row.time for row in result.rows]
    shown = np.array([100 * row.accuracy for row in result.rows])
    axes.plot(x, shown, label=result.label, markevery=marks(0, len(x)), **look(0))
    target = result.config.run.target
    goal(axes, target)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy (%)")
    whole(axes, [shown], 100 * target)
    axes.set_xlim(left=0)
    tidy(axes)
    heading = textwrap.fill(result.config.about, _LETTERS)
    axes.set_title(heading, fontsize=TEXT)
    # Room for the text, in inches. Every run has this picture, and matplotlib takes as long to measure text as to draw.
    below = 0.48 + 0.185 * legend_below(figure, axes)
    above = 0.1 + 0.16 * (heading.count("\n") + 1 if heading else 0)
    bottom, top = below / height, max(1 - above / height, below / height + 0.1)
    figure.subplots_adjust(0.6 / width, bottom, 1 - 0.2 / width, top)
    return figure


def legend_below(figure: Figure, axes: Axes, letters: int = 60) -> int:
    """Put the legend of ``axes``' lines below all axes, so that it covers no curve; ``letters`` fit in a line.

    Returns the number of its lines.
    """
    # others are matplotlib's own
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    longest = max(len(str(line.get_label())) for line in lines)
    columns = max(1, min(len(lines), letters // (longest + 8)))
    figure.legend(
        handles=lines, loc="lower center" if figure.get_layout_engine() is None else "outside lower center",
        ncols=columns, fontsize=TEXT - 1, frameon=False, handlelength=3,
    )  # fmt: skip
    return -(-len(lines) // columns)
