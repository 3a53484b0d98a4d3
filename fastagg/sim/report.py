"""Tables about runs for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fastagg.sim.metrics import ACTIVITIES, unit_text

if TYPE_CHECKING:
    from fastagg.sim.claims import Judged
    from fastagg.sim.result import Result
    from fastagg.sim.sweep import Cell

COMPARISON_COLUMNS = (
    "algorithm",
    "seed",
    "stopped",
    "final_accuracy",
    "best_accuracy",
    "last5_accuracy_mean",
    "last5_accuracy_std",
    "time_to_target",
    "uploads_to_target",
    "virtual_time",
    "uploads",
    "versions",
    "delay_mean",
    "delay_median",
    "delay_max",
)


def time_table(lines: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Return a table with a line per label: its wall seconds and their shares by activity."""
    table = empty_table("Where the time goes (wall seconds and share)", "method")
    for heading in (*ACTIVITIES, "other", "total"):
        table.add_column(heading, justify="right")
    for label, wall in lines:
        cells = [f"{wall[a]:.2f} {wall[a] / wall['total']:4.0%}" for a in (*ACTIVITIES, "other")]
        table.add_row(label, *cells, f"{wall['total']:.2f}")
    table.caption = (
        "server: with drawing who is next and its delay. setup: loading data, building the model. "
        "other: records, checkpoints"
    )
    table.caption_justify = "left"
    return table


def comparison_csv(runs: Sequence[tuple[Cell, Result]]) -> str:
    """Return one line per run with its grid values and the numbers of its summary.json, as CSV with a header."""
    keys = list(dict.fromkeys(key for cell, _ in runs for key, _ in cell.choice))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["name", *keys, *COMPARISON_COLUMNS])
    for cell, result in runs:
        values = [dict(cell.choice).get(key) for key in keys]
        writer.writerow([cell.config.name, *values, *(result.summary[column] for column in COMPARISON_COLUMNS)])
    return buffer.getvalue()


def empty_table(title: str, first: str) -> Table:
    # Narrow enough for a terminal of 80 columns.
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)
    table.add_column(first)
    return table


def units(results: Sequence[Result]) -> str:
    """Return the units of virtual time of all ``results``, in words."""
    return " or ".join(unit_text(unit) for unit in sorted({result.unit for result in results}))


def claims_table(found: Sequence[Judged]) -> Table:
    table = empty_table("Claims", "claim")
    for heading in ("difference, 95% interval", "seeds", ""):
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(one.claim.text, str(one.difference), str(len(one.difference.pairs)), one.difference.verdict)
    return table
