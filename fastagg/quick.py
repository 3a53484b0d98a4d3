"""Compares this machine with torch in less than a minute: ``fastagg bench --quick``.

It measures some of the cases of ``fastagg bench``: whole servers in fastagg's public API, from the task to the receipt.
Each is compared with the plainest in-place loop of the same rule in eager torch. The loop looks for NaN with one
``dot`` and does no other work of a server: no versions, no receipts, no locks. Both must end at the same model before
anything is timed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from fastagg import timing

RULES = ("ASGD", "FedBuff, M = 10", "FADAS, M = 1", "ACE fp32", "ACE int8")
PEERS = ("torch eager", "torch eager, fp32 cache")
SIZES = (100_000, 4_000_000)
ROUNDS, SECONDS = 15, 2.0  # of each rule and size: no round begins later, once there are five


@dataclass(frozen=True)
class Measured:
    """The measurements of a rule at one size.

    Attributes:
        rule: its name.
        peer: the name of the other side.
        size: the number of the model's parameters.
        ours, torch: the seconds of an update, medians.
        ratio: torch's time divided by fastagg's in the same round: 20th percentile, median, 80th percentile. Below 1,
            fastagg is slower.
    """

    rule: str
    peer: str
    size: int
    ours: float
    torch: float
    ratio: tuple[float, float, float]


def folder() -> Path:
    """Return the folder of the benchmarks: a checkout's ``bench/``, or what an installed package has of it."""
    package = Path(__file__).resolve().parent
    beside = package.parent / "bench"
    return beside if (package.parent / "pyproject.toml").is_file() and beside.is_dir() else package / "_bench"


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
    sys.path.insert(0, str(folder()))
    try:
        one, cases = import_module("measure").measure, import_module("cases").CASES
    finally:
        sys.path.remove(str(folder()))
    lines, began = [], timing.busy()
    for rule in RULES:
        for size in sizes:
            care = timing.Care(0.005, math.inf, 0.0)
            found = one(cases[f"arrival {rule}"], size, rounds=rounds, wanted=PEERS, within=SECONDS, care=care).timed
            told()
            if peer := next((name for name in PEERS if name in found), None):
                ours, theirs = (timing.Quantiles.of(found[name].samples).p50 for name in ("fastagg", peer))
                low, middle, high = found[peer].info["ratio"]
                lines.append(Measured(rule, peer, size, ours, theirs, (low, middle, high)))
    return lines, timing.others(began, timing.busy()) or 0.0
