"""Measures one case at one size. Every candidate is built, compared with fastagg's result, and timed in turns with the
others. If the vectors fit in no cache, the memory's speed is timed too (roofline.py)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import machine
import peak
import timing
import torch
from problem import CPU, OURS, ROUNDING, Built, Candidate, Case, Problem, Skip, batches
from roofline import speeds, streams

import fastagg

# candidates that do less work than fastagg on purpose, so they are not peers
FLOORS = (
    "the native call alone",
    "the copy alone, pinned already",
    "one write and fdatasync",
    "the digest alone",
    "one read of the disk",
    "reading the rows",
)
# The core's clock and other load change within milliseconds. So short steps need more samples.
ROUNDS, SHORT_ROUNDS, SHORT = 15, 31, 1_000_000
BEYOND = 50_000_000  # parameters; no cache holds such a vector, so the memory limits the speed


@dataclass(frozen=True)
class Timed:
    """A candidate's samples, which are seconds per call or arrival, one from each round, and other figures.

    Attributes:
        info: ``case``, ``candidate``, ``size``, ``threads`` (0 on a device), and ``p20`` and ``p80`` of the seconds.
            ``ratio`` is the time divided by the first candidate's in the same round (p20, median, p80). If they are
            measured: ``share`` of the memory's speed, ``streams`` (bytes a second), ``kept`` (bytes per parameter and
            client), ``memory`` (peak, in models), ``cpu`` (seconds of all threads), ``host`` (the host's seconds).
    """

    samples: list[float]
    info: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A measurement. ``skipped``: candidate -> why it has no times. ``others``, ``discarded``: see :class:`Timings`."""

    timed: dict[str, Timed] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    others: float = 0.0
    discarded: int = 0


def is_peer(candidate: str) -> bool:
    """Return whether the candidate is a competitor, which fastagg should beat."""
    return not candidate.startswith(OURS) and candidate not in FLOORS


def measure(
    case: Case,
    size: int,
    *,
    rounds: int | None = None,
    wanted: Sequence[str] | None = None,
    device: torch.device = CPU,
    clock: timing.Clock | None = None,
    within: float = math.inf,
    care: timing.Care = timing.QUIET,
    floors: bool = False,
) -> Found:
    """Measure a case.

    Candidates that together need more memory than there is run in groups. Each group contains fastagg and the streams,
    and ratios are computed within a group.

    Args:
        rounds: samples of each candidate; by default 31 below a million parameters, otherwise 15.
        wanted: the names of the candidates that are measured beside the first one. None: all.
        clock: the clock of a sample; by default the device's own (``timing.clock_of``).
        within: after so many seconds no further round begins, if there are at least five.
        care: how quiet the machine must be.
        floors: measure shares at every size, take the best round of each, and compare with the case's floor.

    Raises:
        AssertionError: a candidate's result differs from fastagg's, or fastagg is below both parts of its floor. There
            are two parts because other load slows down either the cores or the memory.
    """
    rounds = rounds or (SHORT_ROUNDS if size < SHORT else ROUNDS)
    problem = replace(Problem(size, device=device), lr=case.lr)
    leader, *rest = (one for one in case.candidates() if device.type in one.devices)
    others = [one for one in rest if wanted is None or one.name in wanted]
    # Vectors besides a candidate's: the streams' three, the update, its negative, fastagg's state, two for comparisons.
    shared = (3 if case.bytes else 0) + 2 + leader.vectors + (3 + 4 if case.corrected else 3)
    free = machine.available_bytes(device)
    if 4 * size * shared > 0.9 * free:
        reason = f"needs {4 * size * shared / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
        return Found(skipped={leader.name: reason})
    found = Found()
    for group in list(batches(others, problem, shared)) or [[]]:
        timer = clock or (timing.ToldClock() if case.told else timing.clock_of(CPU if case.host else device))
        built, skipped = build(case, problem, [leader, *group])
        try:
            one = _timed(case, problem, leader.name, built, skipped, rounds, within, timer, care, floors)
        finally:
            for ready in built.values():
                ready.close()
        found = Found(
            one.timed | found.timed, found.skipped | one.skipped, max(found.others, one.others),
            found.discarded + one.discarded,
        )  # fmt: skip
    return found


def _timed(
    case: Case, problem: Problem, leader: str, built: dict[str, Built], skipped: dict[str, str], rounds: int,
    within: float, clock: timing.Clock, care: timing.Care, floors: bool,
) -> Found:  # fmt: skip
    size = problem.size
    if leader not in built:
        return Found(skipped=skipped)
    beside = streams(problem) if case.bytes and not case.host and (size >= BEYOND or floors) else {}
    runs = {name: ready.run for name, ready in built.items()} | {name: one.run for name, one in beside.items()}
    before = {name: ready.before for name, ready in built.items() if ready.before is not None}
    timings = timing.interleave(
        runs, rounds=rounds, before=before, least=case.least, clock=clock, within=within, needed=leader, care=care
    )
    timings = timings.best() if floors else timings
    threads = fastagg.get_num_threads() if problem.device.type == "cpu" else 0
    fastest, timed = speeds(timings, beside, size), {}
    for name in (one for one in built if one not in timings.lost):
        p20, p50, p80 = (seconds / case.period for seconds in timings.seconds(name))
        info: dict[str, Any] = {
            "case": case.name, "candidate": name, "size": size, "threads": threads, "p20": p20, "p80": p80
        }  # fmt: skip
        if name != leader:
            info["ratio"] = list(timings.ratio(name, leader))
        if fastest and is_counted(name):
            limit = max(speed for kind, speed in fastest.items() if case.reads or kind != "read")
            info |= {"share": case.bytes * size / p50 / limit, "streams": fastest}
        info |= built[name].told()
        if host := clock.host.get(name):
            info["host"] = timing.Quantiles.of(host).p50
        if case.peaks and (cpu := getattr(clock, "cpu", {}).get(name)):
            info["cpu"] = timing.Quantiles.of(cpu).p50 / case.period
        if case.peaks and (most := peak.alone(case.name, name)) is not None:
            info["memory"] = most
        timed[name] = Timed([seconds / case.period for seconds in timings.samples(name)], info)
    if floors and case.floor:
        least, peer, ratio = case.floor
        share, slower = timed[leader].info["share"], timed[peer].info["ratio"][1]
        if share < least and slower < ratio:
            raise AssertionError(
                f"{case.name}: TOO LITTLE: {share:.0%} of streaming, at least {least:.0%}; {peer} takes "
                f"{slower:.2f} times as long, at least {ratio:.2f}"
            )
    return Found(timed, skipped | timings.lost, timings.others or 0.0, timings.discarded)


def is_counted(candidate: str) -> bool:
    """Return whether this candidate moves the case's bytes: fastagg, except with fp32 moments, and the floors."""
    return not is_peer(candidate) and candidate != "fastagg, fp32 moments"


def build(case: Case, problem: Problem, group: Iterable[Candidate]) -> tuple[dict[str, Built], dict[str, str]]:
    """Return candidates that gave the right result, and for each candidate that cannot run the reason."""
    built: dict[str, Built] = {}
    skipped: dict[str, str] = {}
    expected: dict[bool, torch.Tensor] = {}
    for candidate in group:
        try:
            ready = candidate.build(problem)
            for _ in range(ready.warm):
                if ready.before is not None:
                    ready.before()
                ready.run()
        except Skip as reason:
            skipped[candidate.name] = str(reason)
            continue
        except torch.OutOfMemoryError as error:
            skipped[candidate.name] = f"out of memory: {str(error).splitlines()[0][:120]}"
            continue
        built[candidate.name] = ready
        if ready.result is None:
            continue
        if candidate.corrected and True not in expected and case.corrected is not None:
            expected[True] = case.corrected(problem)
        if False not in expected:
            expected[False] = case.exact(problem) if case.exact else ready.result().clone()
        own = case.exact is not None and candidate.name.startswith(OURS)
        want = expected[candidate.corrected]
        if case.apart is not None:
            _near(candidate.name, ready.result(), want, case.apart)
        else:
            _equal(candidate.name, ready.result(), want, problem, ROUNDING if own else case.rounding)
    return built, skipped


def _near(name: str, got: torch.Tensor, want: torch.Tensor, apart: float) -> None:
    found = float((got - want).norm() / want.norm())
    if not found <= apart:
        raise AssertionError(f"{name}: its result differs from fastagg's by {found:.2g} of its norm")


def _equal(name: str, got: torch.Tensor, want: torch.Tensor, problem: Problem, rounding: float) -> None:
    """Check equality up to rounding. A wrong formula differs by the size of a step, which is hundreds of times more."""
    difference = (got.to(want.device) - want).abs_()
    worst = float(difference.max()) if want.numel() else 0.0
    bound = rounding * float(want.abs().max()) + 1e-5 * problem.lr if want.numel() else 0.0
    if not worst <= bound:
        at, beyond = int(difference.argmax()), int((difference > bound).sum())
        raise AssertionError(
            f"{name}: its result differs from fastagg's by {worst:.3g}, more than {bound:.3g}, in {beyond} elements: "
            f"at {at} it is {float(got[at])!r}, fastagg's {float(want[at])!r}"
        )
