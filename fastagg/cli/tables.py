"""Tables about this machine for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastagg._types import Plain
from fastagg.cli.screen import VALUE
from fastagg.page import flat
from fastagg.sheet import Sheet

if TYPE_CHECKING:
    from fastagg.quick import Measured


def pairs_table(title: str, pairs: Plain) -> Sheet:
    """Return a table of names and values. Nested dictionaries become dotted names."""
    return Sheet(title, ("name", VALUE), flat(pairs))


# They fit 80 columns side by side: whether fastagg is faster stands beside the size that it is said of.
HEADINGS = ("rule", "params", "fastagg, ms", "torch, ms", "torch / fastagg", "p20 to p80", "fastagg is")


def quick_table(measured: Sequence[Measured], busy: float) -> Sheet:
    """Return the results of `fastagg bench --quick`: a line for each rule and size. It names losses in words."""
    rows = []
    for line in measured:
        low, middle, high = line.ratio
        times = [f"{1e3 * seconds:.3f}" for seconds in (line.ours, line.torch)]
        rows.append(
            [line.rule, _size(line.size), *times, _times(middle), f"{_times(low)} to {_times(high)}", verdict(line)]
        )
    return Sheet("Whole updates, compared with eager torch", HEADINGS, rows, _caption(busy))


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:g} M" if parameters >= 10**6 else f"{parameters / 1e3:g} k"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"


def verdict(line: Measured) -> str:
    """Return which side was faster; neither, if the middle of the rounds contains 1."""
    low, _, high = line.ratio
    return "faster" if low > 1 else "SLOWER" if high < 1 else "even"


def _caption(busy: float) -> str:
    """Return how to read the table, and whether the machine was quiet enough for it."""
    text = (
        "An update is dispatch and receive, with checks, versions and receipts. torch does the same rule in place, "
        "with one check for NaN. Above 1 fastagg is faster. ACE with int8 updates is compared with torch with fp32."
    )
    if busy > 0.05:
        text += (
            f" OTHER PROCESSES USED {busy:.0%} OF THIS MACHINE: this slows torch's threads down more than fastagg's, "
            "so these ratios are too good for fastagg. Measure again on a quiet machine."
        )
    return text
