"""The report's two pictures, in the simulator's style. A processor is included if it has results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import tables
from cases import CASES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measure import is_peer
from problem import OURS
from results import Row

from fastagg.sim import style as plots

UPDATES = ("arrival FedBuff, M = 10", "arrival FADAS, M = 1", "arrival ACE int8")
MOST = 5  # lines per panel
LARGE = (8_000_000, 20_000_000)  # parameters: the sizes of the second picture


def captions(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return file and caption of every picture for which there are enough results."""
    return [(name, words) for name, words, _, enough in PICTURES if enough(rows)]


def draw(rows: Sequence[Row], folder: Path) -> None:
    """Write the pictures as PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, _, paint, enough in PICTURES:
        if enough(rows):
            plots.save(paint(rows), folder / name)


def curves(rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Draw nanoseconds per parameter over the size: a row of panels per processor, a panel per case."""
    devices = sorted({row.processor for row in rows if row.case in names})
    figure = Figure(figsize=(3.1 * len(names), 2.7 * len(devices)), layout="constrained")
    grid = figure.subplots(len(devices), len(names), squeeze=False)
    for line, device in zip(grid, devices, strict=True):
        for axes, case in zip(line, names, strict=True):
            own = [row for row in rows if (row.processor, row.case, row.unit) == (device, case, "s")]
            most = max((row.threads for row in own), default=0)
            words = f"{case.removeprefix('arrival ')}\n{device}, {tables.threads(most)}"
            _panel(axes, [row for row in own if row.threads == most], words)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], title: str) -> None:
    for number, candidate in enumerate(_drawn(rows)):
        points = sorted((row for row in rows if row.candidate == candidate), key=lambda row: row.size)
        x = [row.size for row in points]
        y = [1e9 * row.median / row.size for row in points]
        low = [1e9 * (row.median - row.p20) / row.size for row in points]
        high = [1e9 * (row.p80 - row.median) / row.size for row in points]
        axes.errorbar(x, y, yerr=[low, high], label=candidate, capsize=2, elinewidth=0.8, **plots.look(number))
    plots.logarithmic(axes, "x")
    plots.logarithmic(axes, "y")
    axes.xaxis.set_major_formatter(lambda value, _: tables.size(int(value)))
    axes.minorticks_off()
    axes.set_xlabel("parameters")
    axes.set_ylabel("ns per parameter")
    axes.set_title(title, fontsize=plots.TEXT - 1)
    plots.tidy(axes)
    if rows:
        axes.legend(fontsize=plots.TEXT - 3, frameon=False)


def _drawn(rows: Sequence[Row]) -> list[str]:
    """Return fastagg, then the peers with the most sizes; those with the best ratio come first."""
    peers = {row.candidate for row in rows if is_peer(row.candidate) and row.ratio}

    def order(candidate: str) -> tuple[int, float]:
        own = [row.ratio[1] for row in rows if row.candidate == candidate and row.ratio]
        return -len(own), min(own)

    return [OURS, *sorted(peers, key=order)[: MOST - 1]] if rows else []


def ratios(rows: Sequence[Row]) -> Figure:
    """Draw the best peer's time over fastagg's, at about ten million parameters."""
    devices, names = sorted({row.processor for row in _large(rows)}), [n for n in CASES if _best(rows, n)]
    figure = Figure(figsize=(6.4, 0.9 + 0.2 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, device in enumerate(devices):
        found = [
            (at, row) for at, name in enumerate(reversed(names)) for row in _best(rows, name) if row.processor == device
        ]
        at = [place + 0.14 * (number - (len(devices) - 1) / 2) * 2 for place, _ in found]
        x = [row.ratio[1] for _, row in found if row.ratio]
        low = [row.ratio[1] - row.ratio[0] for _, row in found if row.ratio]
        high = [row.ratio[2] - row.ratio[1] for _, row in found if row.ratio]
        look = {**plots.look(number), "linestyle": ""}
        axes.errorbar(x, at, xerr=[low, high], label=device, capsize=2, elinewidth=0.8, **look)
    axes.axvline(1, color="black", linewidth=0.8)
    plots.logarithmic(axes, "x")
    axes.set_yticks(range(len(names)), [name.removeprefix("arrival ") for name in reversed(names)])
    axes.set_xlabel("the best peer's time / fastagg's (right of 1 fastagg is faster)")
    plots.tidy(axes)
    axes.legend(fontsize=plots.TEXT - 1, frameon=False)
    return figure


def _large(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if LARGE[0] <= row.size <= LARGE[1] and row.case in CASES and row.unit == "s"]


def _best(rows: Sequence[Row], name: str) -> list[Row]:
    """Return a processor's best peer of a case, with the most threads."""
    found = []
    own = [row for row in _large(rows) if row.case == name]
    for device in sorted({row.processor for row in own}):
        here = [row for row in own if row.processor == device]
        most = max(row.threads for row in here)
        if best := tables.best_peer([row for row in here if row.threads == most]):
            found.append(best)
    return found


def _have(names: Sequence[str]) -> Callable[[Sequence[Row]], bool]:
    return lambda rows: any(len({row.size for row in rows if row.case == name}) > 1 for name in names)


PICTURES: tuple[tuple[str, str, Callable[[Sequence[Row]], Figure], Callable[[Sequence[Row]], bool]], ...] = (
    ("updates.png", "Whole updates, p20 to p80.", lambda rows: curves(rows, UPDATES), _have(UPDATES)),
    ("ratios.png", "The best peer of every case at about 10 M parameters, p20 to p80.", ratios,
     lambda rows: any(_best(rows, name) for name in CASES)),
)  # fmt: skip
