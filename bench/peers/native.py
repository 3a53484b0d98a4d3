"""A case's kernel without the checks of an op: a call that was prepared (``fastagg.ops.prepare``), as for a loop.

It is a floor, not a peer. fastagg's own candidate takes longer by the checks of each call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from problem import Built, Candidate, Problem, Skip, huge
from torch import Tensor

from fastagg import ClientCache, ops
from fastagg.errors import ConfigError

NAME = "the native call alone"
Run = Callable[[], object]


def native_call(case: str) -> list[Candidate]:
    """Return the candidate of one case, if it has one."""
    if case not in _BUILDS:
        return []
    build, vectors = _BUILDS[case]
    return [Candidate(NAME, partial(_built, build), vectors, devices=("cpu",), note="prepared once: no checks")]


def _built(build: Callable[[Problem], Run], problem: Problem) -> Built:
    try:
        return Built(build(problem), None)
    except ConfigError as error:  # an older torch
        raise Skip(str(error)) from error


def _step(problem: Problem, optimizer: str = "sgd", **more: object) -> Run:
    x, *moments = problem.vectors(("x", *ops.OPTIMIZERS[optimizer]), huge)
    held: dict[str, Tensor] = dict(zip(ops.OPTIMIZERS[optimizer], moments, strict=True))
    return ops.prepare(
        ops.step_, x, problem.update, optimizer=optimizer, lr=problem.lr, betas=problem.betas, eps=problem.eps, **held,
        **more,
    )  # fmt: skip


def _flush(problem: Problem, optimizer: str = "sgd") -> Run:
    return _step(problem, optimizer, acc=problem.vector("acc", huge), scale=1.0 / problem.buffer_size)


def _ace(problem: Problem, format: str) -> Run:
    cache, x, total = ClientCache(problem.size, 1, format), problem.vector("x", huge), problem.zeros()
    cache.data.zero_()
    cache.scales.zero_()
    return ops.prepare(
        ops.cached_step_, x, problem.update, cache=cache, write=0, read=0, sum=total, sum_scale=-0.25, client=3,
        arrival=2, optimizer="sgd", lr=problem.lr,
    )  # fmt: skip


_BUILDS: dict[str, tuple[Callable[[Problem], Run], float]] = {
    "amsgrad": (partial(_step, optimizer="amsgrad"), 4),
    "fadas flush": (partial(_flush, optimizer="amsgrad"), 5),
    "accumulate": (lambda problem: ops.prepare(ops.accumulate_, problem.vector("acc", huge), problem.update), 1),
    "apply": (_step, 1),
    "fedbuff flush": (_flush, 2),
    "mixing": (lambda problem: _step(problem, base=problem.vector("base", huge), weight=0.5), 2),
    "ace fp32": (partial(_ace, format="fp32"), 3),
    "ace int8": (partial(_ace, format="int8"), 2.3),
    "distances": (
        lambda problem: ops.prepare(ops.distances, problem.update, *problem.vectors(("x", "base"), huge)), 2,
    ),
    "inspect": (lambda problem: ops.prepare(ops.inspect, problem.update), 0),
}  # fmt: skip
