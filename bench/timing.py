"""Timing several callables against each other: interleaved, in one process, every round on its own.

A machine drifts (neighbours, clocks, memory), so two loops run one after the other compare two moments, not two
programs. Here each round runs every candidate once, in a fresh random order, and ratios are taken within a round.
"""

from __future__ import annotations

import gc
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

Run = Callable[[], object]


class Clock(Protocol):
    """What times a sample. ``clocks.py`` has a device's."""

    settles: bool  # whether candidates share the cores with the clock, so that a pause between them is due
    host: dict[str, list[float]]  # seconds of the host for each call, where that is not what is measured

    def sample(self, name: str, run: Run, calls: int) -> float:
        """Seconds per call of ``calls`` calls in a row."""

    def wait(self) -> None:
        """Return when what was asked for has been done."""


class HostClock:
    """Wall seconds of the calling thread."""

    settles = True

    def __init__(self) -> None:
        self.host: dict[str, list[float]] = {}

    def sample(self, name: str, run: Run, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - start) / calls

    def wait(self) -> None:
        pass


# torch's OpenMP threads spin for some milliseconds after an operation before they sleep, on cores that the next
# candidate needs. This pause lets them stop; what happens without it is measured as a candidate of its own. This thread
# stays awake meanwhile: a core that has slept can take ten milliseconds to come back to speed, on a shared machine.
SETTLE = 0.02

# A round during which other processes took more than this share of all cores is thrown away, whole, and run again,
# as often as there are rounds. Which candidates it favoured cannot be known, so none of it is kept.
DISTURBED = 0.05
PATIENCE = 20.0  # seconds to wait for a quiet moment before a round
FEWEST = 5  # rounds that are measured however long they take


class Quantiles(NamedTuple):
    """The median and the 20th and 80th percentile."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, values: list[float]) -> Quantiles:
        ordered = sorted(values)
        return cls(*(_quantile(ordered, q) for q in (0.2, 0.5, 0.8)))


@dataclass(frozen=True)
class Timings:
    """What an interleaved run measured.

    Attributes:
        rounds: candidate -> round -> seconds per call. Slow candidates sit out some rounds.
        calls: candidate -> calls per sample.
        others: largest share of all cores' time that other processes took in a round, or None where that is not known.
        discarded: rounds thrown away because others took more than ``DISTURBED``.
        lost: candidates that ran out of memory on the way, with the reason; ``rounds`` has nothing of them.
    """

    rounds: dict[str, dict[int, float]]
    calls: dict[str, int]
    others: float | None
    discarded: int
    lost: dict[str, str]

    def samples(self, name: str) -> list[float]:
        """Seconds per call, in the order measured."""
        return list(self.rounds[name].values())

    def seconds(self, name: str) -> Quantiles:
        """Seconds per call."""
        return Quantiles.of(self.samples(name))

    def ratio(self, name: str, to: str) -> Quantiles:
        """Time of ``name`` over time of ``to``, round by round: above 1 where ``to`` is the faster."""
        base = self.rounds[to]
        return Quantiles.of([seconds / base[r] for r, seconds in self.rounds[name].items() if r in base])


def interleave(
    candidates: Mapping[str, Run],
    *,
    rounds: int = 15,
    before: Mapping[str, Run] | None = None,
    least: float = 2e-3,
    patience: float = 0.6,
    settle: float | None = None,
    seed: int = 0,
    clock: Clock | None = None,
    within: float = math.inf,
    needed: str = "fastagg",
) -> Timings:
    """Time every candidate ``rounds`` times, in a new random order each round.

    The order changes because a candidate's predecessor matters: it leaves caches and spinning threads behind.

    Args:
        candidates: what to time, already warm (compiled, allocated, its result checked).
        rounds: samples of each.
        before: untimed preparation right before a candidate's sample.
        least: seconds a sample takes at least; faster candidates are called several times and averaged. Where one of
            them is, every sample follows an untimed call: what fits into the caches is then there for all candidates,
            and not only for those that are called often.
        patience: candidates slower than this many seconds run in every third round only.
        settle: seconds of pause before each sample; None for ``SETTLE``.
        seed: of the order.
        clock: what times a sample; wall seconds by default. A device's clock makes one call a sample: it is the
            device's own time, and what the call before left in its caches is overwritten.
        within: seconds after which no further round begins, once there are five.
        needed: the candidate whose lack of memory is an error. Another one that runs out of memory is dropped, alone.
    """
    clock = clock or HostClock()
    order, shuffle = list(candidates), random.Random(seed).shuffle
    prepare, lost = before or {}, dict[str, str]()
    # What must be prepared is called once a sample; on a device everything is.
    many = {name: run for name, run in candidates.items() if name not in prepare} if clock.settles else {}
    warm = {name: _warm(run, least, clock) for name, run in many.items()}
    calls = {name: _calls(warm[name], least) if name in warm else 1 for name in order}
    slow = {name for name, seconds in warm.items() if seconds > patience}
    small = min(warm.values(), default=least) < least

    def sample(name: str, turn: int) -> float | None:
        if name in lost or (name in slow and turn % 3):
            return None
        if clock.settles:
            _stay_awake(SETTLE if settle is None else settle)
        try:
            if name in prepare:
                prepare[name]()
            elif small and name not in slow:
                candidates[name]()
            return clock.sample(name, candidates[name], calls[name])
        except torch.OutOfMemoryError as error:
            if name == needed:
                raise
            lost[name] = f"out of memory: {str(error).splitlines()[0][:120]}"
            clock.host.pop(name, None)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            return None

    names, kept, shares = list(order), list[dict[str, float]](), list[float]()
    retries, until = rounds, time.perf_counter() + within
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        while len(kept) < rounds and (len(kept) < FEWEST or time.perf_counter() < until):
            shuffle(order)
            if clock.settles:
                _wait_for_quiet()
            began, current = _busy(), {}
            for name in order:
                seconds = sample(name, len(kept))
                if seconds is not None:
                    current[name] = seconds
            share = _others(began, _busy())
            if clock.settles and share is not None and share > DISTURBED and retries > 0:
                retries -= 1
                continue
            kept.append(current)
            shares += [] if share is None else [share]
    finally:
        if enabled:
            gc.enable()
    measured = {
        name: {i: r[name] for i, r in enumerate(kept) if name in r} for name in names if name not in lost
    }  # fmt: skip
    return Timings(measured, calls, max(shares, default=None), rounds - retries, lost)


def do_not_wait() -> None:
    """Measure on a machine in use, too: for trying a benchmark out."""
    global DISTURBED, PATIENCE, SETTLE
    DISTURBED, PATIENCE, SETTLE = math.inf, 0.0, 0.0


def _wait_for_quiet() -> None:
    until = time.perf_counter() + PATIENCE
    while time.perf_counter() < until:
        began = _busy()
        time.sleep(0.2)
        share = _others(began, _busy())
        if share is None or share <= DISTURBED:
            return


def _stay_awake(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _warm(run: Run, least: float, clock: Clock) -> float:
    """Seconds per call once code, caches and threads are there: a slow first call must not make a sample short."""
    once = min(clock.sample("", run, 1) for _ in range(2))
    return once if once >= least else min(once, clock.sample("", run, _calls(once, least / 4)))


def _calls(once: float, least: float) -> int:
    return min(10_000, max(1, math.ceil(least / max(once, 1e-7))))


def _quantile(ordered: list[float], q: float) -> float:
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _busy() -> tuple[float, float, float] | None:
    """Core-seconds that ran something since boot, core-seconds of this process, and the wall clock."""
    try:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    total = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return total, time.process_time(), time.perf_counter()


def _others(start: tuple[float, float, float] | None, end: tuple[float, float, float] | None) -> float | None:
    if start is None or end is None:
        return None
    total, own, wall = (b - a for a, b in zip(start, end, strict=True))
    return max(0.0, total - own) / (wall * (os.cpu_count() or 1))
