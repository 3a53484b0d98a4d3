"""Tables about runs, for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from fastagg.sim.metrics import ACTIVITIES, unit_text

if TYPE_CHECKING:
    from fastagg.measuring import Choice
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


def accuracy_table(results: Sequence[Result]) -> Table:
    """Return a table with a line per run: accuracies, time to target, uploads, versions, delays."""
    targets = {result.config.run.target for result in results}
    target = f"{targets.pop():.0%}" if len(targets) == 1 else "target"
    table = empty_table("Test accuracy", "method")
    for heading in (
        "final",
        "best",
        "last 5",
        f"time to {target}",
        "uploads",
        "versions",
        "delay mean",
        "max",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        s = result.summary
        label = result.label if s["stopped"] == "finished" else f"{result.label} ({s['stopped']})"
        table.add_row(
            label,
            f"{s['final_accuracy']:.1%}",
            f"{s['best_accuracy']:.1%}",
            f"{100 * s['last5_accuracy_mean']:.1f}±{100 * s['last5_accuracy_std']:.1f}",
            "never" if s["time_to_target"] is None else f"{s['time_to_target']:.1f}",
            str(s["uploads"]),
            str(s["versions"]),
            f"{s['delay_mean']:.1f}",
            str(s["delay_max"]),
        )
    table.caption = (
        f"last 5: mean and deviation of the last five evaluations. Time is virtual, in {units(results)}. "
        "Delays are in server versions."
    )
    table.caption_justify = "left"
    return table


def tuning_table(choices: Sequence[Choice]) -> Table:
    """What `fastagg tune` measured: a line for each setting."""
    table = Table("setting", "step", "milliseconds by value", "table", "chosen", "why", box=None)
    for choice in choices:
        times = "  ".join(f"{value or 'never'}: {1e3 * taken:.2f}" for value, taken in choice.seconds.items())
        usual = choice.seconds[choice.usual]
        best = min(choice.seconds.values())
        why = f"{usual / choice.seconds[choice.chosen] - 1:.0%} faster than the table's"
        if choice.chosen == choice.usual:
            why = "the table's is the fastest" if best == usual else "nothing is faster by more than the noise"
        values = [str(value or "never") for value in (choice.usual, choice.chosen)]
        table.add_row(choice.setting, choice.step, times, *values, why)
    return table


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
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column(first)
    return table


def pairs_table(title: str, pairs: dict[str, Any]) -> Table:
    """Return a table of names and values; nested dictionaries become dotted names."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("name")
    table.add_column("value")
    for name, value in _flat(pairs):
        table.add_row(name, value)
    return table


def _flat(pairs: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in pairs.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            rows.append((prefix + name, ", ".join(str(item) for item in value) or "none"))
        else:
            rows.append((prefix + name, str(value)))
    return rows


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
