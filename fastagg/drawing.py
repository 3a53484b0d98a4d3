"""The style of all pictures of runs and benchmarks, and the function that writes their files.

Pictures use matplotlib's ``Figure`` without pyplot, so they need no display and no global state. Pictures are made for
papers: the font is small, and the figure's size is the size in print. Lines differ in colour, dashes and marker, so
that a reader can tell the lines apart in grey print.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fastagg._types import Plain
from fastagg.page import COLOURS
from fastagg.storage import files

FORMATS = ("png", "pdf", "svg")
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = ("-", (0, (5, 2)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 200  # dots per inch of a PNG file
TEXT = 9  # font size in points
GREY = "#777777"


def look(number: int) -> Plain:
    """Return the style of line ``number`` (from 0) of a picture: its colour, dashes and marker."""
    dashes = DASHES[(number + 2 * (number // len(MARKERS))) % len(DASHES)]
    line = {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes, "linewidth": 1.3}
    return {**line, "marker": MARKERS[number % len(MARKERS)], "markersize": 3.6, "markeredgewidth": 0.6,
            "markeredgecolor": "white"}  # fmt: skip


def marks(number: int) -> tuple[float, float]:
    """Return the place of the first marker on line ``number`` (from 0), and the distance between the line's markers, as
    fractions of the axes' diagonal. The places of four consecutive lines differ."""
    return 0.03 * (number % 4), 0.12


def tidy(axes: Axes) -> None:
    axes.grid(color="#e2e2e2", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.6)
    axes.tick_params(labelsize=TEXT - 1, width=0.6, length=2.5)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(TEXT)


def logarithmic(axes: Axes, which: str) -> None:
    """Make an axis logarithmic. ``which``: "x" or "y". Labels are ordinary numbers such as 10, without exponents. If
    there is room, 2 and 5 times a power of ten have labels, too. There are no minor ticks, because they take time."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    # Without "mask" a line from zero would be drawn flat up to its second point.
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", nonpositive="mask")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def legend(figure: Figure, handles: Sequence[Artist], labels: Sequence[str], size: float = TEXT - 1) -> int:
    """Put a legend below all axes, with as many columns as the figure's width allows. ``size``: the font size in
    points. Return the number of text lines in a column."""
    letters = 72 * figure.get_figwidth() / (0.55 * size)
    columns = max(1, min(len(labels), int(letters // (max(map(len, labels)) + 8))))
    labels = [textwrap.fill(label, max(12, int(letters / columns) - 8)) for label in labels]
    style: Plain = {"ncols": columns, "frameon": False, "handlelength": 3, "fontsize": size}
    figure.legend(handles, labels, loc="outside lower center", **style)
    return -(-sum(label.count("\n") + 1 for label in labels) // columns)


def sized(figure: Figure, width: float | None, font_size: float | None) -> Figure:
    """Change the width of ``figure`` to ``width`` inches, and scale its text from 9 points to ``font_size`` points.
    None: no change.

    The figure's legend gets as many lines as it needs in this width. If there is a ``width``, the figure's headings are
    removed, because a figure in a paper has a caption."""
    before, lines, size = figure.get_size_inches(), 0, TEXT if font_size is None else font_size
    for text in figure.texts if width is not None else ():  # the texts of a figure are its headings
        text.set_text("")
    for text in figure.findobj(Text):
        text.set_fontsize(size * float(text.get_fontsize()) / TEXT)
    figure.set_figwidth(before[0] if width is None else width)
    for old in [*figure.legends]:
        handles = [handle for handle in old.legend_handles if handle is not None]
        old.remove()
        lines = legend(figure, handles, [text.get_text() for text in old.get_texts()], size * (TEXT - 1) / TEXT)
    specs = filter(None, (axes.get_subplotspec() for axes in figure.axes))
    rows = math.inf if width is None else 2.4 * len({spec.rowspan.start for spec in specs}) + 2
    figure.set_figheight(min(before[1], rows) + lines * 0.02 * size)
    return figure


def save(figure: Figure, path: Path) -> bytes:
    """Write ``figure`` in the format of the path's suffix, completely or not at all. Return the figure as a PNG file's
    bytes, whatever the format."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})  # saves time
    with files.whole(path) as file:
        if path.suffix == ".png":
            file.write(png.getvalue())
        else:
            figure.savefig(file, format=path.suffix[1:], dpi=DPI)
    return png.getvalue()
