"""Measures one case at one size. Every candidate is built, compared with fastagg's result, and timed in turns with the
others and with the streams that measure memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import machine
import timing
import torch
from problem import CPU, OURS, ROUNDING, Built, Candidate, Case, Problem, Skip, batches
from results import Row
from roofline import Stream, best, streams

import fastagg

# they do less work than ours by intent, so they are not peers
FLOORS = ("the native call alone", "the copy alone, pinned already")
# A sample of milliseconds depends on the current state of the core's clock and of the neighbours. So short steps need
# more samples.
ROUNDS, SHORT_ROUNDS, SHORT = 15, 31, 1_000_000


@dataclass(frozen=True)
class Found:
    """The result of a measurement.

    Attributes:
        rows: a row per candidate, and one for each kind of stream.
        samples: seconds of each candidate, for pytest-benchmark.
        skipped: candidates without figures, with the reason.
        others, discarded: as in timing.py.
    """

    rows: list[Row]
    samples: dict[str, list[float]]
    skipped: dict[str, str]
    others: float
    discarded: int


def is_peer(candidate: str) -> bool:
    """Whether fastagg should be faster."""
    return not candidate.startswith(OURS) and candidate not in FLOORS


def measure(
    case: Case,
    size: int,
    *,
    rounds: int | None = None,
    only: Sequence[str] = ("",),
    without: Sequence[str] = (),
    device: torch.device = CPU,
    clock: timing.Clock | None = None,
    within: float = math.inf,
) -> Found:
    """Measure a case.

    Candidates that together need more memory than there is run in groups. Each group contains fastagg and the streams,
    and ratios are computed within a group.

    Args:
        rounds: samples of each candidate; by default 31 below a million parameters, otherwise 15.
        only, without: keep only the peers whose names contain one of the words in ``only``; drop those with one in
            ``without``.
        clock: the clock of a sample; by default the device's own (``timing.clock_of``).
        within: after so many seconds no further round begins, if there are at least five.

    Raises:
        AssertionError: a candidate's result differs from fastagg's.
    """
    rounds = rounds or (SHORT_ROUNDS if size < SHORT else ROUNDS)
    problem = replace(Problem(size, device=device), lr=case.lr)
    leader, *rest = (one for one in case.candidates() if device.type in one.devices)
    others = [
        one for one in rest
        if any(word in one.name for word in only) and not any(word in one.name for word in without)
    ]  # fmt: skip
    # For all: the streams' three vectors, the update and its negative, the leader's state, two vectors for comparisons.
    shared = (3 if case.bytes else 0) + 2 + leader.vectors + (3 + 4 if case.corrected else 3)
    free = machine.available_bytes(device)
    if 4 * size * shared > 0.9 * free:
        reason = f"needs {4 * size * shared / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
        return Found([], {}, {leader.name: reason}, 0.0, 0)
    found = Found([], {}, {}, 0.0, 0)
    for group in list(batches(others, problem, shared)) or [[]]:
        timer = clock or timing.clock_of(CPU if case.host else device)
        one = _group(case, problem, [leader, *group], rounds, within, timer)
        known = {row.key for row in found.rows}
        found = Found(
            found.rows + [row for row in one.rows if row.key not in known], one.samples | found.samples,
            found.skipped | one.skipped, max(found.others, one.others), found.discarded + one.discarded,
        )  # fmt: skip
    stamp = machine.stamp(device)
    return replace(found, rows=[replace(row, **stamp) for row in found.rows])


def _group(
    case: Case, problem: Problem, group: Sequence[Candidate], rounds: int, within: float, clock: timing.Clock
) -> Found:
    built, skipped = build(case, problem, group)
    beside = streams(problem) if case.bytes and not case.host else {}
    runs = {name: ready.run for name, ready in built.items()} | {name: one.run for name, one in beside.items()}
    before = {name: ready.before for name, ready in built.items() if ready.before is not None}
    leader = group[0].name
    if leader not in built:
        return Found([], {}, skipped, 0.0, 0)
    timings = timing.interleave(
        runs, rounds=rounds, before=before, least=case.least, clock=clock, within=within, needed=leader
    )
    skipped |= timings.lost
    threads = fastagg.get_num_threads() if problem.device.type == "cpu" else 0
    rows, samples = [], {}
    for name in built:
        if name in timings.lost:
            continue
        samples[name] = [seconds / case.period for seconds in timings.samples(name)]
        p20, p50, p80 = (seconds / case.period for seconds in timings.seconds(name))
        share = None
        if beside and is_counted(name):
            kinds = ("read",) if case.reads else ("copy", "triad")
            share = case.bytes * problem.size / p50 / best(timings, beside, problem.size, kinds)[1]
        ratio = None if name == leader else tuple(timings.ratio(name, leader))
        row = Row(case.name, name, problem.size, threads, p50, p20, p80, ratio=ratio, share=share)
        rows.append(row)
        if kept := built[name].kept:
            rows.append(replace(row, median=kept, p20=kept, p80=kept, unit="B/parameter", ratio=None, share=None))
        if host := clock.host.get(name):
            p20, p50, p80 = timing.Quantiles.of(host)
            rows.append(Row(case.name, f"{name}, on the host", problem.size, threads, p50, p20, p80))
    for kind in ("copy", "triad", "read", "in place") if beside else ():
        name, _ = best(timings, beside, problem.size, (kind,))
        p20, p50, p80 = timings.seconds(name)
        rows.append(Row("streams", kind, problem.size, threads, p50, p20, p80))
    return Found(rows, samples, skipped, timings.others or 0.0, timings.discarded)


def is_counted(candidate: str) -> bool:
    """Return whether the case's bytes are what this candidate moves: fastagg and its floors, without fp32 moments."""
    return not is_peer(candidate) and candidate != "fastagg, fp32 moments"


def build(case: Case, problem: Problem, group: Iterable[Candidate]) -> tuple[dict[str, Built], dict[str, str]]:
    """Return the candidates whose first step gave the right result, and the reasons of those that cannot run."""
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


__all__ = ["Found", "Stream", "build", "is_peer", "measure"]
