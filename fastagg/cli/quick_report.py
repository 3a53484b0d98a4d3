"""The results of `fastagg bench --quick`: a picture, a page and the samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from fastagg import page
from fastagg.cli.tables import quick_table
from fastagg.errors import DataError
from fastagg.sim import output, plots

if TYPE_CHECKING:
    from fastagg.quick import Measured

TITLE = "fastagg compared with torch on this machine"
AXIS = "torch's time / fastagg's (above 1 fastagg is faster)"


def write(measured: Sequence[Measured], busy: float, facts: Mapping[str, Any], out: Path, picture: str) -> list[Path]:
    """Write the picture, report.html and samples.json into ``out``. Return their paths.

    Raises:
        DataError: ``out`` cannot be written.
    """
    plot, report, samples = out / f"ratios.{picture}", out / "report.html", out / "samples.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        plots.save(figure(measured), plot)
        output.write_text(report, html(measured, busy, facts))
        everything = {"machine": facts, "busy": busy, "measured": [asdict(line) for line in measured]}
        output.write_text(samples, json.dumps(everything, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot write results to {out}: {error}") from error
    return [plot, report, samples]


def figure(measured: Sequence[Measured]) -> Figure:
    """Draw the ratios as bars from 1, on a logarithmic axis, with the middle 60% of the rounds as a line."""
    drawn = Figure(figsize=(5.6, 0.9 + 0.26 * len(measured)), layout="constrained")
    axes = drawn.subplots()
    places = range(len(measured))[::-1]
    for place, line in zip(places, measured, strict=True):
        low, high = line.spread
        wins = line.ratio >= 1
        # Losses are hatched, so that they can be seen in grey print.
        axes.barh(
            place,
            line.ratio - 1,
            left=1,
            height=0.62,
            color=page.COLOURS[0 if wins else 1],
            hatch="" if wins else "///",
        )
        axes.plot([low, high], [place, place], color="black", linewidth=1)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(list(places), [name(line) for line in measured])
    axes.set_xlabel(AXIS)
    ends = [1.0, *(end for line in measured for end in line.spread)]
    low, high = min(ends) / 1.2, max(ends) * 1.2
    ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    plots.tidy(axes)
    return drawn


def html(measured: Sequence[Measured], busy: float, facts: Mapping[str, Any]) -> str:
    bars = [
        {"name": name(line), "value": line.ratio, "low": line.spread[0], "high": line.spread[1]} for line in measured
    ]
    blocks = [
        page.table(quick_table(measured, busy)),
        page.ratios("Whole updates, compared with eager torch", AXIS, bars),
        page.settings("Machine and versions", facts),
    ]
    return page.page(TITLE, blocks, f"{facts['processor']}, {facts['threads']} threads, torch {facts['torch']}")


def name(line: Measured) -> str:
    size = f"{line.size / 1e6:g} M" if line.size >= 1_000_000 else f"{line.size:,}"
    beside = "" if line.peer == "torch, in place" else f" beside {line.peer}"
    return f"{line.case}{beside}, d = {size}"
