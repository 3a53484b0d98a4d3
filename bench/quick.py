"""Compares this machine with torch in less than a minute: ``fastagg bench --quick``, or python bench/quick.py.

It measures some cases of ``fastagg bench``, in which fastagg's public API takes a task to its receipt. Each case is
compared with two simple loops of the same rule in eager torch. Both check for NaN with one ``dot``. They have no
receipts and no locks. The first loop keeps the version that a client still trains from, as fastagg does. The second
loop steps in place. Before the timing, all must give the same model.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import checkout  # noqa: F401
import timing
import typer
from cases import CASES
from measure import measure as one_case

from fastagg.cli.screen import show
from fastagg.sheet import Sheet

RULES = ("ASGD", "FedBuff, M = 10", "FADAS, M = 1", "ACE fp32", "ACE int8")
PLACE = ("torch eager", "torch eager, fp32 cache")  # loops in place, of which a rule has one
KEPT = ", a version kept"
PEERS = (*PLACE, *(name + KEPT for name in PLACE))
SIZES = (100_000, 4_000_000)
ROUNDS, SECONDS = 15, 2.0  # for each rule and size; after SECONDS no round begins, if there are at least five


@dataclass(frozen=True)
class Measured:
    """The measurements of a rule at one size.

    Attributes:
        rule: the rule's name.
        peer: the name of what fastagg is compared with.
        size: the number of the model's parameters.
        ours, torch: the median seconds of an update.
        ratio: torch's time divided by fastagg's in the same round: 20th percentile, median, 80th percentile. Below 1,
            fastagg is slower.
        place: the median ratio for the loop that keeps no version.
    """

    rule: str
    peer: str
    size: int
    ours: float
    torch: float
    ratio: tuple[float, float, float]
    place: float


def measure(
    sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, told: Callable[[], None] = lambda: None
) -> tuple[list[Measured], float]:
    """Measure all rules at all ``sizes``. ``told`` is called after each.

    Returns:
        The measurements, and the share (0 to 1) of the machine that other processes used meanwhile. If this is more
        than a few percent, the figures mean little, because threads wait for each other.

    Raises:
        AssertionError: fastagg and the plain loop do not end at the same model, so they cannot be compared.
    """
    lines, began = [], timing.busy()
    for rule in RULES:
        for size in sizes:
            care = timing.Care(0.02, math.inf, 0.0)
            found = one_case(
                CASES[f"arrival {rule}"], size, rounds=rounds, wanted=PEERS, within=SECONDS, care=care
            ).timed
            told()
            if peer := next((name for name in PLACE if name + KEPT in found), None):
                ours, theirs = (timing.Quantiles.of(found[name].samples).p50 for name in ("fastagg", peer + KEPT))
                low, middle, high = found[peer + KEPT].info["ratio"]
                place = found[peer].info["ratio"][1]
                lines.append(Measured(rule, peer + KEPT, size, ours, theirs, (low, middle, high), place))
    return lines, timing.others(began, timing.busy()) or 0.0


# The columns fit in 80 letters, so that each verdict stands beside its size.
HEADINGS = ("rule", "params", "fastagg, ms", "torch / fastagg", "p20 to p80", "fastagg is", "in place")


def quick_table(measured: Sequence[Measured], busy: float) -> Sheet:
    """Return the table of `fastagg bench --quick`: a row for each rule and size, with the verdict in words."""
    rows = []
    for line in measured:
        low, middle, high = line.ratio
        spread = f"{_times(low)} to {_times(high)}"
        rows.append(
            [line.rule, _size(line.size), f"{1e3 * line.ours:.3f}", _times(middle), spread, verdict(line),
             _times(line.place)]
        )  # fmt: skip
    return Sheet("Whole updates, compared with eager torch", HEADINGS, rows, _caption(busy))


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:g} M" if parameters >= 10**6 else f"{parameters / 1e3:g} k"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}"


def verdict(line: Measured) -> str:
    """Return which side was faster. Neither, if 1 lies between the 20th and the 80th percentile of the ratio."""
    low, _, high = line.ratio
    return "faster" if low > 1 else "SLOWER" if high < 1 else "even"


def _caption(busy: float) -> str:
    """Return how to read the table, and whether the machine was quiet enough for it."""
    text = (
        "An update is dispatch and receive, with checks, versions and receipts. torch does the same rule, with one "
        "check for NaN, and keeps the version that the client holds. Above 1 fastagg is faster. In place: the ratio "
        "for torch that keeps no version. ACE with int8 rows is compared with torch with fp32 rows."
    )
    if busy > 0.05:
        text += (
            f" OTHER PROCESSES USED {busy:.0%} OF THIS MACHINE: this slows torch's threads down more than fastagg's, "
            "so these ratios are too good for fastagg. Measure again on a quiet machine."
        )
    return text


def main() -> None:
    """Measure, with a bar, and print the table."""
    # A case has one client, whose updates are all alike. The server warns of both.
    warnings.filterwarnings("ignore", "client 0")
    with typer.progressbar(length=len(RULES) * len(SIZES), label="Measuring", file=sys.stderr) as bar:
        measured, busy = measure(told=lambda: bar.update(1))
    show(quick_table(measured, busy))


if __name__ == "__main__":
    main()
