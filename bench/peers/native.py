"""A case's kernel without the checks of an op: the addresses and numbers that the checks found, passed at each call.

It is a floor, not a peer. fastagg's own candidate takes longer by the checks of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from problem import Built, Candidate, Problem, huge

from fastagg import ClientCache, ops
from fastagg._build import native
from fastagg.ops.checks import optimizer_of, update_of
from fastagg.storage.pieces import as_pieces

NAME = "the native call alone"


class _Call(partial[object]):
    """A kernel's call, and what holds the memory of its addresses."""

    owners: object


def native_call(case: str) -> list[Candidate]:
    """Return the candidate of one case, if it has one."""
    if case not in _BUILDS:
        return []
    build, vectors = _BUILDS[case]
    return [Candidate(NAME, partial(_built, build), vectors, devices=("cpu",), note="no checks")]


def _built(build: Callable[[Problem], _Call], problem: Problem) -> Built:
    return Built(build(problem), None)


def _held(run: _Call, *owners: object) -> _Call:
    run.owners = owners
    return run


def _step(problem: Problem, optimizer: str = "sgd", owners: object = None, **direction: object) -> _Call:
    x, *moments = problem.vectors(("x", *ops.OPTIMIZERS[optimizer]), huge)
    pieces = as_pieces(problem.update)
    given = optimizer_of(
        pieces.size, pieces.device, x, None, optimizer=optimizer, lr=problem.lr, betas=problem.betas, eps=problem.eps,
        **dict(zip(ops.OPTIMIZERS[optimizer], moments, strict=True)),
    )  # fmt: skip
    given |= {"kind": "single", **direction}
    return _held(_Call(native.step, pieces.native, None, given), x, moments, pieces, owners)


def _flush(problem: Problem, optimizer: str = "sgd") -> _Call:
    acc = problem.vector("acc", huge)
    return _step(problem, optimizer, acc, kind="flush", acc=acc.data_ptr(), scale=1.0 / problem.buffer_size)


def _mixing(problem: Problem) -> _Call:
    base = problem.vector("base", huge)
    return _step(problem, owners=base, kind="blend", base=base.data_ptr(), weight=0.5)


def _ace(problem: Problem, format: str) -> _Call:
    cache, total = ClientCache(problem.size, 1, format), problem.zeros()
    cache.data.zero_()
    cache.scales.zero_()
    return _step(
        problem, owners=(cache, total), kind="mean", rows=cache.native, seed=cache.seed, write=0, read=0,
        sum=total.data_ptr(), sum_scale=-0.25, client=3, arrival=2,
    )  # fmt: skip


def _accumulate(problem: Problem) -> _Call:
    acc, pieces = problem.vector("acc", huge), as_pieces(problem.update)
    given = {"acc": acc.data_ptr(), "out": acc.data_ptr()}
    return _held(_Call(native.accumulate, pieces.native, None, given), acc, pieces)


def _distances(problem: Problem) -> _Call:
    (x, base), pieces = problem.vectors(("x", "base"), huge), as_pieces(problem.update)
    run = _Call(native.distances, update_of(pieces), x=x.data_ptr(), base=base.data_ptr(), inner=False)
    return _held(run, x, base, pieces)


def _inspect(problem: Problem) -> _Call:
    pieces = as_pieces(problem.update)
    return _held(_Call(native.sum_squares, update_of(pieces)), pieces)


_BUILDS: dict[str, tuple[Callable[[Problem], _Call], float]] = {
    "amsgrad": (partial(_step, optimizer="amsgrad"), 4),
    "fadas flush": (partial(_flush, optimizer="amsgrad"), 5),
    "accumulate": (_accumulate, 1),
    "apply": (_step, 1),
    "fedbuff flush": (_flush, 2),
    "mixing": (_mixing, 2),
    "ace fp32": (partial(_ace, format="fp32"), 3),
    "ace int8": (partial(_ace, format="int8"), 2.3),
    "distances": (_distances, 2),
    "inspect": (_inspect, 0),
}  # fmt: skip
