"""A case's kernel without the Python around it: one native call on prepared structs, as in a server.

It is a floor, not a peer. fastagg's own candidate takes longer by the checks of an op that is called from Python.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from problem import Built, Candidate, Problem, huge

import fastagg
from fastagg._build import native

NAME = "the native call alone"
Run = Callable[[], object]


def native_call(case: str) -> list[Candidate]:
    """Return the candidate of one case, if it has one."""
    if case not in _BUILDS:
        return []
    build, vectors = _BUILDS[case]
    return [Candidate(NAME, partial(_built, build), vectors, devices=("cpu",), note="no checks, no structs to make")]


def update_of(update: torch.Tensor) -> object:
    """Return the struct of one flat update. The update must live longer than the struct."""
    return native.Update([(update.data_ptr(), update.numel(), 0)])


def _built(build: Callable[[Problem], tuple[Run, object]], problem: Problem) -> Built:
    run, held = build(problem)

    def kept() -> object:
        return run(), held  # the structs contain their addresses

    return Built(kept, None)


def _step(
    problem: Problem, kind: str = "sgd", direction: object | None = None, held: object = None
) -> tuple[Run, object]:
    names = ("x", "m", "v", "vhat") if kind == "amsgrad" else ("x",)
    x, *moments = problem.vectors(names, huge)
    hyper = native.Hyper(lr=problem.lr, beta1=problem.betas[0], beta2=problem.betas[1], eps=problem.eps)
    own = native.Moments(**{name: vector.data_ptr() for name, vector in zip(names[1:], moments, strict=True)})
    optimizer = native.Optimizer(kind=kind, hyper=hyper, moments=own, x=x.data_ptr(), x_out=x.data_ptr())
    update = update_of(problem.update)
    along = native.Direction.single() if direction is None else direction
    return lambda: native.step(update, along, optimizer), (problem.update, x, moments, held)


def _flush(problem: Problem, kind: str = "sgd") -> tuple[Run, object]:
    acc = problem.vector("acc", huge)
    along = native.Direction.flush(buffer=native.Buffer(acc=acc.data_ptr(), scale=1.0 / problem.buffer_size))
    return _step(problem, kind, along, acc)


def _mixing(problem: Problem) -> tuple[Run, object]:
    base = problem.vector("base", huge)
    return _step(problem, direction=native.Direction.blend(base=base.data_ptr(), weight=0.5), held=base)


def _accumulate(problem: Problem) -> tuple[Run, object]:
    acc = problem.vector("acc", huge)
    update, at = update_of(problem.update), acc.data_ptr()
    return lambda: native.accumulate(update, acc=at, weight=1.0, out=at), (acc, problem.update)


def _ace(problem: Problem, format: str) -> tuple[Run, object]:
    cache, total = fastagg.ClientCache(problem.size, 1, format), problem.zeros()
    cache.data.zero_()
    cache.scales.zero_()
    key = native.RandomKey(seed=1, step=2, client=3)
    row = native.Exchange(key=key, rows=cache.native, read=0, write=0)
    along = native.Direction.mean(row=row, sum=native.Sum(values=total.data_ptr(), scale=-0.25))
    return _step(problem, direction=along, held=(cache, total))


def _distances(problem: Problem) -> tuple[Run, object]:
    x, base = problem.vectors(("x", "base"), huge)
    update, at, against = update_of(problem.update), x.data_ptr(), base.data_ptr()
    return lambda: native.distances(update, x=at, base=against, inner=False), (x, base, problem.update)


def _inspect(problem: Problem) -> tuple[Run, object]:
    update = update_of(problem.update)
    return lambda: native.sum_squares(update), problem.update


_BUILDS: dict[str, tuple[Callable[[Problem], tuple[Run, object]], float]] = {
    "amsgrad": (partial(_step, kind="amsgrad"), 4),
    "fadas flush": (partial(_flush, kind="amsgrad"), 5),
    "accumulate": (_accumulate, 1),
    "apply": (_step, 1),
    "fedbuff flush": (_flush, 2),
    "mixing": (_mixing, 2),
    "ace fp32": (partial(_ace, format="fp32"), 3),
    "ace int8": (partial(_ace, format="int8"), 2.3),
    "distances": (_distances, 2),
    "inspect": (_inspect, 0),
}
