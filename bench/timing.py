"""Times several callables in turns, round by round. All benchmarks use this timer.

A machine changes over time (neighbours, clocks, memory). Two loops run one after the other would compare two moments,
not two programs. So each round runs every candidate once, in a new random order, and ratios are computed within a
round.
"""

from __future__ import annotations

import gc
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

Run = Callable[[], object]
BUSY = 3_000_000  # clock cycles of the device, about 2 ms; the host needs less for any candidate's launches


def seconds(run: Run) -> float:
    """Return the wall seconds of one call."""
    return HostClock().sample("", run, 1)


class Clock(Protocol):
    """A clock that measures one sample."""

    settles: bool  # whether candidates share the cores with the clock, so that it must pause between them
    host: dict[str, list[float]]  # seconds of the host for each call, if the clock measures something else

    def sample(self, name: str, run: Run, calls: int) -> float:
        """Return the seconds per call of ``calls`` consecutive calls."""

    def wait(self) -> None:
        """Wait until all launched work is done."""


class HostClock:
    """Measures the wall seconds of the calling thread. The CPU seconds of all threads for each call are in ``cpu``."""

    settles = True

    def __init__(self) -> None:
        self.host: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    def sample(self, name: str, run: Run, calls: int) -> float:
        start, spent = time.perf_counter(), time.process_time()
        for _ in range(calls):
            run()
        taken = time.perf_counter() - start
        self.cpu.setdefault(name, []).append((time.process_time() - spent) / calls)
        return taken / calls

    def wait(self) -> None:
        pass


class CudaClock:
    """Measures the device's seconds between two events, one call per sample. The host's seconds are in ``host``.

    Before each sample a buffer of twice the L2 cache's size is overwritten, so that no candidate finds its vectors in
    the cache. The device is kept busy until the host has launched the call. So only the call itself is measured.
    """

    settles = False

    def __init__(self, device: torch.device) -> None:
        size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
        self.past = torch.empty(size, dtype=torch.uint8, device=device)
        self.host: dict[str, list[float]] = {}

    def sample(self, name: str, run: Run, calls: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.past.zero_()
        torch.cuda._sleep(BUSY)
        began = time.perf_counter()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        took = time.perf_counter() - began
        self.wait()
        self.host.setdefault(name, []).append(took / calls)
        return start.elapsed_time(end) / 1e3 / calls

    def wait(self) -> None:
        torch.cuda.synchronize()


class ToldClock:
    """Uses the seconds that a call returns, for work in other processes, which measure the time themselves."""

    settles = False

    def __init__(self) -> None:
        self.host: dict[str, list[float]] = {}

    def sample(self, name: str, run: Run, calls: int) -> float:
        return float(run())  # type: ignore[arg-type]

    def wait(self) -> None:
        pass


def clock_of(device: torch.device) -> Clock:
    """Return the clock for candidates on ``device``."""
    return HostClock() if device.type == "cpu" else CudaClock(device)


@dataclass(frozen=True)
class Care:
    """Precautions against measuring other load.

    Attributes:
        settle: seconds before each sample. torch's OpenMP threads spin for some milliseconds after an operation, on
            cores that the next candidate needs. This thread stays awake meanwhile, because on a shared machine a core
            that has slept can take ten milliseconds to reach full speed.
        disturbed: if other processes took more than this share of all cores, the whole round is discarded and
            repeated, at most as often as there are rounds. It is unknown which candidates such a round favours.
        patience: seconds to wait for a quiet moment, at first and after a disturbed round.
    """

    settle: float = 0.02
    disturbed: float = 0.05
    patience: float = 20.0


QUIET = Care()
AT_ONCE = Care(0.0, math.inf, 0.0)  # no waiting, also on a busy machine
FEWEST = 5  # at least so many rounds are measured, however long they take


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
    """The measurements of an interleaved run.

    Attributes:
        rounds: candidate -> round -> seconds per call. Slow candidates skip some rounds.
        calls: candidate -> calls per sample.
        others: the largest share of all cores' time that other processes took in a round; None if it is unknown.
        discarded: how many rounds were discarded because others took more than ``Care.disturbed``.
        lost: candidates that ran out of memory, with the reason. ``rounds`` does not contain them.
    """

    rounds: dict[str, dict[int, float]]
    calls: dict[str, int]
    others: float | None
    discarded: int
    lost: dict[str, str]

    def best(self) -> Timings:
        """Return only the best round of each candidate: a disturbance only makes a round slower."""
        return replace(self, rounds={name: {0: min(found.values())} for name, found in self.rounds.items()})

    def samples(self, name: str) -> list[float]:
        """Return the seconds per call, in the order of measurement."""
        return list(self.rounds[name].values())

    def seconds(self, name: str) -> Quantiles:
        """Return the quantiles of the seconds per call."""
        return Quantiles.of(self.samples(name))

    def ratio(self, name: str, to: str) -> Quantiles:
        """Return the time of ``name`` over the time of ``to``, per round. Above 1, ``to`` is faster."""
        base = self.rounds[to]
        return Quantiles.of([seconds / base[r] for r, seconds in self.rounds[name].items() if r in base])


def interleave(
    candidates: Mapping[str, Run],
    *,
    rounds: int = 15,
    before: Mapping[str, Run] | None = None,
    least: float = 2e-3,
    patience: float = 0.6,
    clock: Clock | None = None,
    within: float = math.inf,
    needed: str = "fastagg",
    care: Care = QUIET,
    told: Run = lambda: None,
) -> Timings:
    """Time every candidate ``rounds`` times, in a new random order each round.

    The order changes because a candidate's predecessor affects it: it leaves data in caches, and spinning threads.

    Args:
        candidates: what to time, already warm (compiled, allocated, its result checked).
        rounds: samples of each.
        before: preparation right before a candidate's sample, which is not timed.
        least: the least seconds of a sample. Faster candidates are called several times, and the mean is taken. If
            there is such a candidate, every sample follows an untimed call. Then data that fits in the caches is there
            for all candidates, not only for those that are called often.
        patience: candidates slower than this many seconds run only in every third round.
        clock: the clock of a sample; by default wall seconds. A device's clock makes one call per sample, measures the
            device's own time, and overwrites the caches before each call.
        within: after so many seconds no further round begins, if there are at least five.
        needed: it is an error if this candidate runs out of memory. Any other candidate is then dropped alone.
        care: how quiet the machine must be.
        told: is called after every round.
    """
    clock = clock or HostClock()
    order, shuffle = list(candidates), random.Random(0).shuffle
    prepare, lost = before or {}, dict[str, str]()
    # A call that needs preparation is made once per sample. On a device this applies to all.
    many = {name: run for name, run in candidates.items() if name not in prepare} if clock.settles else {}
    warm = {name: _warm(run, least, clock) for name, run in many.items()}
    calls = {name: _calls(warm[name], least) if name in warm else 1 for name in order}
    slow = {name for name, seconds in warm.items() if seconds > patience}
    small = min(warm.values(), default=least) < least

    def sample(name: str, turn: int) -> float | None:
        if name in lost or (name in slow and turn % 3):
            return None
        if clock.settles:
            _stay_awake(care.settle)
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
    disturbed = True
    try:
        while len(kept) < rounds and (len(kept) < FEWEST or time.perf_counter() < until):
            shuffle(order)
            if clock.settles and disturbed:
                _wait_for_quiet(care)
            began, current = busy(), {}
            for name in order:
                seconds = sample(name, len(kept))
                if seconds is not None:
                    current[name] = seconds
            share = others(began, busy())
            told()
            disturbed = clock.settles and share is not None and share > care.disturbed
            if disturbed and retries > 0:
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


def _wait_for_quiet(care: Care) -> None:
    until = time.perf_counter() + care.patience
    while time.perf_counter() < until:
        began = busy()
        time.sleep(0.2)
        share = others(began, busy())
        if share is None or share <= care.disturbed:
            return


def _stay_awake(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _warm(run: Run, least: float, clock: Clock) -> float:
    """Return the seconds per call after a warm-up. A slow first call must not make a sample short."""
    once = min(clock.sample("", run, 1) for _ in range(2))
    return once if once >= least else min(once, clock.sample("", run, _calls(once, least / 4)))


def _calls(once: float, least: float) -> int:
    return min(10_000, max(1, math.ceil(least / max(once, 1e-7))))


def _quantile(ordered: list[float], q: float) -> float:
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def busy() -> tuple[float, float, float] | None:
    """Return the core-seconds of all processes since boot and of this process, and the wall clock; None if unknown."""
    try:
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = fields
    total = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return total, time.process_time(), time.perf_counter()


def others(start: tuple[float, float, float] | None, end: tuple[float, float, float] | None) -> float | None:
    """Return the share (0 to 1) of all cores that other processes took between two values of :func:`busy`."""
    if start is None or end is None:
        return None
    total, own, wall = (b - a for a, b in zip(start, end, strict=True))
    return max(0.0, total - own) / (wall * (os.cpu_count() or 1))
