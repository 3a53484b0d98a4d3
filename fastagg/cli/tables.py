"""Tables about this machine for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fastagg.page import flat

if TYPE_CHECKING:
    from fastagg.measuring import Choice
    from fastagg.quick import Measured


def pairs_table(title: str, pairs: dict[str, Any]) -> Table:
    """Return a table of names and values. Nested dictionaries become dotted names."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("name")
    table.add_column("value")
    for name, value in flat(pairs):
        table.add_row(name, value)
    return table


def tuning_table(choices: Sequence[Choice]) -> Table:
    """Return the results of `fastagg tune`: a line for each setting."""
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


QUICK_HEADINGS = ("rule", "parameters", "fastagg, ms", "torch, ms", "torch / fastagg", "p20 to p80", "fastagg is")


def quick_rows(measured: Sequence[Measured]) -> list[list[str]]:
    """Return the results of `fastagg bench --quick` as cells: a line for each rule and size."""
    rows = []
    for line in measured:
        low, high = line.spread
        times = [f"{1e3 * statistics.median(samples):.3f}" for samples in (line.ours, line.torch)]
        rows.append(
            [line.case, f"{line.size:,}", *times, f"{line.ratio:.2f}", f"{low:.2f} to {high:.2f}", verdict(line)]
        )
    return rows


def quick_table(measured: Sequence[Measured], busy: float) -> Table:
    """Return the results of `fastagg bench --quick` as a table for the terminal. It names losses in words."""
    table = Table(title="Whole arrivals, compared with eager torch", title_justify="left", box=None)
    for heading in QUICK_HEADINGS:
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for row in quick_rows(measured):
        table.add_row(*row)
    table.caption = quick_caption(measured, busy)
    table.caption_justify = "left"
    return table


def verdict(line: Measured) -> str:
    """Return which side was faster; neither, if the middle of the rounds contains 1."""
    low, high = line.spread
    return "faster" if low > 1 else "SLOWER" if high < 1 else "even"


def quick_caption(measured: Sequence[Measured], busy: float) -> str:
    """Return how to read the table, and whether the machine was quiet enough for it."""
    text = (
        "An arrival is dispatch and receive, with checks, versions and receipts. torch does the same rule in place, "
        "with one check for NaN. Below 1 fastagg is slower. ACE with int8 rows is compared with torch with fp32 rows."
    )
    if busy > 0.05:
        text += (
            f" OTHER PROCESSES USED {busy:.0%} OF THIS MACHINE: this slows torch's threads down more than fastagg's, "
            "so these ratios are too good for fastagg. Measure again on a quiet machine."
        )
    return text
