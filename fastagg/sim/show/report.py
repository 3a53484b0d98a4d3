"""Tables about runs: their time, their claims, a line for each run as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastagg.sheet import Sheet
from fastagg.sim.one.metrics import ACTIVITIES, unit_text

if TYPE_CHECKING:
    from fastagg.sim.many.claims import Judged
    from fastagg.sim.many.sweep import Cell
    from fastagg.sim.one.result import Result

COMPARISON_COLUMNS = (
    "algorithm", "seed", "stopped", "final_accuracy", "best_accuracy", "last5_accuracy_mean", "last5_accuracy_std",
    "time_to_target", "uploads_to_target", "virtual_time", "uploads", "versions", "delay_mean", "delay_median",
    "delay_max",
)  # fmt: skip


def time_table(lines: Sequence[tuple[str, Mapping[str, float]]]) -> Sheet:
    """Return a table with a line per label: its wall seconds and their shares by activity."""
    rows = []
    for label, wall in lines:
        cells = [f"{wall[activity]:.2f} {wall[activity] / wall['total']:4.0%}" for activity in (*ACTIVITIES, "other")]
        rows.append([label, *cells, f"{wall['total']:.2f}"])
    return Sheet(
        "Where the time goes (wall seconds and share)", ["method", *ACTIVITIES, "other", "total"], rows,
        "server: with drawing who is next and its delay. setup: loading data, building the model. other: records, "
        "checkpoints.",
    )  # fmt: skip


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


def units(results: Sequence[Result]) -> str:
    """Return the units of virtual time of all ``results``, in words."""
    return " or ".join(unit_text(unit) for unit in sorted({result.unit for result in results}))


def claims_table(found: Sequence[Judged]) -> Sheet:
    """Return a table with a line per claim of a paper: what these runs say of it."""
    rows = [
        [one.claim.text, str(one.difference), str(len(one.difference.pairs)), one.difference.verdict] for one in found
    ]
    return Sheet("Claims", ["claim", "difference, 95% interval", "seeds", "verdict"], rows)
