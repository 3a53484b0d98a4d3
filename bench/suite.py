"""The operations: bytes per parameter by the specification's table, our candidates, their peers, and one measurement
of them all together with the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import machine
import ours
import ours_cached
import peers
import torch
from problem import Built, Candidate, Problem, Skip, batches
from records import Row
from roofline import Stream, best, streams
from timing import Timings, interleave

import fastagg

OURS = "fastagg"
ROUNDING = 2e-6


@dataclass(frozen=True)
class Operation:
    """One thing that a server does.

    Attributes:
        bytes: read and written per parameter, each once (the table in README.md).
        candidates: ours first; the first one's result is what the others' must equal.
        corrected: our result with Adam's bias correction, for peers that always apply it.
        exact: the result in float64; ours must equal it within rounding, peers within ``rounding``.
        lr: learning rate.
        rounding: relative difference that rounding may make.
        reads: it writes nothing, so that what memory gives is what it gives to reading.
    """

    name: str
    bytes: float
    candidates: Callable[[], list[Candidate]]
    corrected: Callable[[Problem], torch.Tensor] | None = None
    lr: float = 1e-3
    rounding: float = ROUNDING
    exact: Callable[[Problem], torch.Tensor] | None = None
    reads: bool = False


OPTIMIZERS = [
    Operation(
        "amsgrad",
        36,
        lambda: [*ours.adaptive("amsgrad"), *peers.adaptive(amsgrad=True), *peers.plain_loop("amsgrad")],
        partial(ours.corrected, optimizer="amsgrad"),
    ),
    Operation(
        "adam",
        28,
        lambda: [*ours.adaptive("adam"), *peers.adaptive(amsgrad=False), *peers.plain_loop("adam")],
        partial(ours.corrected, optimizer="adam"),
    ),
    # Three moments of a byte, read and written, and two units for every 256.
    Operation("amsgrad 8bit", 18.06, lambda: ours.coded("amsgrad")),
    Operation("adam 8bit", 16.06, lambda: ours.coded("adam")),
    Operation("momentum 8bit", 14.03, lambda: ours.coded("momentum")),
]


def _update(name: str, bytes_: int, lr: float = 1.0, **more: Any) -> Operation:
    return Operation(
        name, bytes_, lambda: [*ours.updates(name), *peers.UPDATES[name], *peers.plain_loop(name)], lr=lr, **more
    )


UPDATES = [
    _update("accumulate", 12),
    _update("apply", 12),
    _update("fedbuff flush", 16),
    _update("fadas flush", 40, lr=1e-3, corrected=ours.corrected_flush),
    # Peers add in fp32: torch is 1.3% off at 110 M.
    _update("inspect", 4, rounding=0.05, exact=ours.exact_norm, reads=True),
]


def _cached(name: str, bytes_: int, rule: str, format: str = "fp32", optimizer: str = "sgd", **more: Any) -> Operation:
    def candidates() -> list[Candidate]:
        return [*ours_cached.cached(rule, format, optimizer), *peers.CACHED[name], *peers.plain_loop(name)]

    return Operation(name, bytes_, candidates, lr=0.1, **more)


# Without scales (0.016 bytes) and the sum's scrub (0.6 to 1.6): the table counts what the rule needs.
CACHES = [
    _cached("ace fp32", 28, "ace"),
    _cached("ace bf16", 24, "ace", "bf16"),
    _cached("ace int8", 22, "ace", "int8"),
    _cached("ace int4", 21, "ace", "int4"),
    # torch's own sqrt had 12 bits on its second thread in some processes, where ours and the first thread's had all.
    _cached("ace int8 amsgrad", 46, "ace", "int8", "amsgrad", rounding=1e-5),
    _cached("aced int8", 23, "aced", "int8"),
    _cached("ca2fl arrival", 20, "ca2fl arrival"),
]

STALENESS = [
    _cached("distances", 12, "distances", rounding=0.05, exact=ours_cached.exact_distances, reads=True),
    _cached("sketch", 4, "sketch"),
    _cached("mixing", 16, "mixing"),
]

SUITES = {"optimizers": OPTIMIZERS, "updates": UPDATES, "caches": CACHES, "staleness": STALENESS}


def measure(operation: Operation, size: int, rounds: int = 15, only: tuple[str, ...] = ("",)) -> list[Row]:
    """Every candidate of ``operation`` at ``size`` parameters, interleaved with each other and with the roofline.

    Candidates that do not fit into memory together run in groups; each group holds fastagg and the roofline, and
    ratios are taken within a group. ``only`` keeps the candidates whose names contain one of its words.
    """
    problem = replace(Problem(size), lr=operation.lr)
    leader, *rest = operation.candidates()
    others = [candidate for candidate in rest if any(word in candidate.name for word in only)]
    # The streams' five vectors, the update and its negative, the leader's state, two vectors to compare results.
    shared = 5 + 2 + leader.vectors + (3 + 4 if operation.corrected else 3)
    free = machine.available_bytes()
    if 4 * size * shared > 0.9 * free:
        reason = f"needs {4 * size * shared / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
        return [Row(operation.name, OURS, size, operation.bytes, skipped=reason, threads=fastagg.get_num_threads())]
    rows: list[Row] = []
    for group in list(batches(others, problem, shared)) or [[]]:
        rows += _group(operation, problem, [leader, *group], rounds, first=not rows)
    return rows


def _group(operation: Operation, problem: Problem, group: list[Candidate], rounds: int, first: bool) -> list[Row]:
    built, skipped = _build(operation, problem, group)
    found = streams(problem.size)
    runs = {name: candidate.run for name, candidate in built.items()} | {n: s.run for n, s in found.items()}
    before = {name: candidate.before for name, candidate in built.items() if candidate.before is not None}
    timings = interleave(runs, rounds=rounds, before=before)
    rows = [_row(operation, problem.size, candidate, timings, found, skipped) for candidate in group]
    if not first:
        return rows[1:]
    return [*rows, *(_stream_row(name, stream, problem.size, timings, found) for name, stream in found.items())]


def _build(
    operation: Operation, problem: Problem, group: Iterable[Candidate]
) -> tuple[dict[str, Built], dict[str, str]]:
    """Candidates whose first step gave the right result, and the reasons of those that cannot run."""
    built: dict[str, Built] = {}
    skipped: dict[str, str] = {}
    expected: dict[bool, torch.Tensor] = {}
    for candidate in group:
        try:
            ready = candidate.build(problem)
        except Skip as reason:
            skipped[candidate.name] = str(reason)
            continue
        ready.run()
        if candidate.corrected and True not in expected and operation.corrected is not None:
            expected[True] = operation.corrected(problem)
        if False not in expected:
            expected[False] = operation.exact(problem) if operation.exact else ready.result().clone()
        own = operation.exact is not None and candidate.name.startswith(OURS)
        rounding = ROUNDING if own else operation.rounding
        _equal(candidate.name, ready.result(), expected[candidate.corrected], problem, rounding)
        built[candidate.name] = ready
    return built, skipped


def _equal(name: str, got: torch.Tensor, expected: torch.Tensor, problem: Problem, rounding: float) -> None:
    """Rounding apart: a wrong formula differs by the size of the step, hundreds of times more."""
    difference = (got - expected).abs_()
    worst = float(difference.max()) if expected.numel() else 0.0
    bound = rounding * float(expected.abs().max()) + 1e-5 * problem.lr
    if not worst <= bound:
        at, beyond = int(difference.argmax()), int((difference > bound).sum())
        raise AssertionError(
            f"{name}: its result differs from fastagg's by {worst:.3g}, more than {bound:.3g}, in {beyond} elements: "
            f"at {at} it is {float(got[at])!r}, fastagg's {float(expected[at])!r}"
        )


def _row(
    operation: Operation, size: int, candidate: Candidate, timings: Timings, found: dict[str, Stream],
    skipped: dict[str, str],
) -> Row:  # fmt: skip
    row = Row(operation.name, candidate.name, size, operation.bytes, candidate.note, threads=fastagg.get_num_threads())
    if candidate.name in skipped:
        return replace(row, skipped=skipped[candidate.name])
    row = _figures(row, timings, found)
    if not operation.reads or row.gbps is None:
        return row
    return replace(row, of_reading=row.gbps * 1e9 / best(timings, found, size, ("read",))[1])


def _stream_row(name: str, stream: Stream, size: int, timings: Timings, found: dict[str, Stream]) -> Row:
    moved = stream.moved * size / timings.seconds(name).p50 / 1e9
    note = f"moves {moved:.1f} GB/s" + (f"; {stream.note}" if stream.note else "")
    row = Row("roofline", name, size, stream.counted, note, threads=fastagg.get_num_threads())
    return _figures(row, timings, found)


def _figures(row: Row, timings: Timings, found: dict[str, Stream]) -> Row:
    seconds = timings.seconds(row.candidate)
    speed = row.bytes * row.size / seconds.p50
    return replace(
        row,
        seconds=tuple(seconds),
        samples=tuple(timings.samples(row.candidate)),
        gbps=speed / 1e9,
        of_roofline=speed / best(timings, found, row.size, ("copy", "triad"))[1],
        of_in_place=speed / best(timings, found, row.size, ("in place",))[1],
        slower=tuple(timings.ratio(row.candidate, OURS)),
        others=timings.others,
        discarded=timings.discarded,
    )
