"""One pass over memory for each part of a rule: adding up, stepping, mixing, and norms, which only read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from peers import compiled, grid, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge, plain
from torch import Tensor

from fastagg import ClientCache, ops

ROWS = 4  # rows that really exist; what an arrival reads and writes does not depend on their number
Make = Callable[[Problem], Callable[..., object]]  # what changes its first argument: (target, update, *others)


def passes(make: Make, kinds: Sequence[str], allocate: Callable[..., Tensor] = plain, *, fast: bool = False) -> Make:
    """Return what builds such a step, on vectors of these kinds; ``fast``: by torch.compile."""

    def build(problem: Problem) -> Built:
        target, *others = problem.vectors(kinds, allocate)
        run = (compiled if fast else partial)(make(problem), target, problem.update, *others)
        return Built(run, lambda: target)

    return build


def eager(
    make: Make, kinds: Sequence[str], note: str = "", name: str = "torch eager in place", scratch: int = 0
) -> Candidate:
    return Candidate(name, passes(make, kinds), len(kinds) + scratch, note=note)


def by_compiler(make: Make, kinds: Sequence[str]) -> Candidate:
    return Candidate("torch.compile", passes(make, kinds, fast=True), len(kinds))


def _case(
    name: str, bytes_: float, kinds: Sequence[str], ours: Make, peers: Sequence[Candidate], **more: object
) -> Case:
    def candidates() -> list[Candidate]:
        own = Candidate("fastagg", passes(ours, kinds, huge), len(kinds))
        return [own, *native_call(name), *peers, *plain_loop(name)]

    return Case(name, bytes_, candidates, **more)  # type: ignore[arg-type]


# -- adding up, stepping and mixing


def _foreach(problem: Problem) -> Built:
    acc = problem.vector("acc")
    sums, pieces = problem.layers(acc), problem.layers(problem.update)
    return Built(lambda: torch._foreach_add_(sums, pieces), lambda: acc)


def _flower(problem: Problem) -> Built:
    held = [[p.numpy() for p in problem.layers(problem.vector("acc"))]]
    d = [p.numpy() for p in problem.layers(problem.update)]

    def run() -> None:
        held[0] = [a + 1.0 * b for a, b in zip(held[0], d, strict=True)]

    return Built(run, lambda: torch.from_numpy(np.concatenate([a.ravel() for a in held[0]])))


def _two_passes(problem: Problem) -> Callable[..., None]:
    step = problem.lr / problem.buffer_size

    def flush(x: Tensor, d: Tensor, acc: Tensor) -> None:
        acc.add_(d)  # the buffer is cleared next, so it may hold the sum; only the first run's result is meaningful
        x.add_(acc, alpha=step)

    return flush


def _one_pass(problem: Problem) -> Callable[..., None]:
    step = problem.lr / problem.buffer_size

    def flush(x: Tensor, d: Tensor, acc: Tensor) -> None:
        x.add_((acc + d) * step)

    return flush


def _mix(problem: Problem) -> Callable[..., None]:
    lr = problem.lr

    def mix(x: Tensor, d: Tensor, base: Tensor) -> None:
        x.mul_(1 - lr).add_(base, alpha=lr).add_(d, alpha=lr)

    return mix


STEPS = [
    _case(
        "accumulate", 12, ("acc",), lambda _: ops.accumulate_,
        [
            eager(lambda _: Tensor.add_, ("acc",), name="torch add_"),
            Candidate("torch _foreach_add_", _foreach, 1, note="62 layers"),
            Candidate("NumPy as Flower writes it", _flower, 2.5, note="a list of arrays (62 layers)", devices=("cpu",)),
        ],
        lr=1.0, floor=(0.65, "torch add_", 0.7),
    ),
    _case(
        "apply", 12, ("x",), lambda p: partial(ops.step_, optimizer="sgd", lr=p.lr),
        [eager(lambda p: partial(Tensor.add_, alpha=p.lr), ("x",), name="torch add_")], lr=1.0,
    ),
    _case(
        "fedbuff flush", 16, ("x", "acc"),
        lambda p: lambda x, d, acc: ops.step_(x, d, optimizer="sgd", lr=p.lr, acc=acc, scale=1.0 / p.buffer_size),
        [
            eager(_two_passes, ("x", "acc"), "24 bytes per parameter in two passes", "torch add_, add_"),
            by_compiler(_one_pass, ("x", "acc")),
        ],
        lr=1.0,
    ),
    _case(
        "mixing", 16, ("x", "base"), lambda p: lambda x, d, base: ops.step_(x, d, optimizer="sgd", lr=p.lr, base=base),
        [eager(_mix, ("x", "base")), by_compiler(_mix, ("x", "base"))], lr=0.1,
    ),
]  # fmt: skip


# -- CA2FL: the difference of an update to its client's row is added to the sum, and the row is replaced


def _ours_of_ca2fl(problem: Problem) -> Built:
    update, cache = grid(problem, "fp32"), ClientCache(problem.size, ROWS + 1, "fp32", problem.device)
    cache.data.zero_()
    acc, turn = problem.vector("acc", huge), [0]

    def run() -> None:
        ops.cached_step_(
            None, update, cache=cache, write=(turn[0] + 1) % ROWS, read=turn[0] % ROWS, acc=acc, arrival=turn[0]
        )
        turn[0] += 1

    return Built(run, lambda: acc)


def _torch_of_ca2fl(problem: Problem, how: Callable[..., Callable[[], None]]) -> Built:
    def step(acc: Tensor, g: Tensor, old: Tensor, new: Tensor) -> None:
        acc.add_(g).sub_(old)
        new.copy_(g)

    acc = problem.vector("acc")
    return Built(how(step, acc, grid(problem, "fp32"), problem.zeros(), problem.zeros()), lambda: acc)


def _of_ca2fl() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours_of_ca2fl, 3 + ROWS),
        Candidate("torch eager in place", partial(_torch_of_ca2fl, how=partial), 4),
        Candidate("torch.compile", partial(_torch_of_ca2fl, how=compiled), 4),
        *plain_loop("ca2fl arrival"),
    ]


# -- what only reads: an update's norm; the two norms of AsyncFedED's staleness


def exact(problem: Problem, *kinds: str) -> Tensor:
    """Return the norms with their squares added in float64."""
    squares = torch.zeros(1 + len(kinds) // 2, dtype=torch.float64, device=problem.device)
    vectors = (*problem.vectors(kinds), problem.update)
    for *pair, update in zip(*(vector.split(1 << 24) for vector in vectors), strict=True):
        squares[-1] += update.double().square().sum()
        if pair:
            squares[0] += (pair[0] - pair[1]).double().square().sum()
    return squares.sqrt()


def _norms(problem: Problem, *kinds: str) -> Built:
    update, *pair = problem.vectors(("update", *kinds), huge)
    found = torch.zeros(1 + len(pair) // 2)
    if problem.device.type == "cuda":  # the form for which the host does not wait
        measure = partial(ops.measure, update, **dict(zip(kinds, pair, strict=True)))
        sums = [measure()]
        return Built(lambda: sums.__setitem__(0, measure()), lambda: sums[0][: len(found)].flip(0).sqrt())

    def inspect() -> None:
        found[0] = ops.inspect(update).norm

    def distances() -> None:
        seen = ops.distances(update, *pair)
        found[0], found[1] = seen.moved, seen.norm

    return Built(distances if pair else inspect, lambda: found)


def _vector_norm(problem: Problem) -> Built:
    found = torch.zeros(1, device=problem.device)

    def run() -> None:
        # A norm is finite exactly if every element is (except for overflow). So one read is enough instead of two.
        found[0] = torch.linalg.vector_norm(problem.update)

    return Built(run, lambda: found)


def _usual(problem: Problem) -> Built:
    found = torch.zeros(1)

    def run() -> None:
        if bool(torch.isfinite(problem.update).all()):
            found[0] = problem.update.norm().item()

    return Built(run, lambda: found)


def _vector_norms(problem: Problem, how: Callable[..., Callable[[], None]]) -> Built:
    found = torch.zeros(2, device=problem.device)

    def norms(x: Tensor, base: Tensor, d: Tensor) -> None:
        found[0] = torch.linalg.vector_norm(x - base)
        found[1] = torch.linalg.vector_norm(d)

    return Built(how(norms, *problem.vectors(("x", "base")), problem.update), lambda: found)


def _of_inspect() -> list[Candidate]:
    return [
        Candidate("fastagg", _norms, 1),
        *native_call("inspect"),
        Candidate("torch vector_norm", _vector_norm, 0, note="finite if the norm is; fp32 sums"),
        Candidate("torch isfinite, norm", _usual, 0.25, note="as usually written"),
        *plain_loop("inspect"),
    ]


def _of_distances() -> list[Candidate]:
    return [
        Candidate("fastagg", lambda problem: _norms(problem, "x", "base"), 3),
        *native_call("distances"),
        Candidate("torch eager in place", partial(_vector_norms, how=partial), 3),
        Candidate("torch.compile", partial(_vector_norms, how=compiled), 3),
        *plain_loop("distances"),
    ]


CASES = [
    *STEPS,
    Case("ca2fl arrival", 20, _of_ca2fl, lr=0.1),
    # Peers add in fp32. At 110 M elements torch is off by 1.3%.
    Case("inspect", 4, _of_inspect, rounding=0.05, exact=exact, reads=True),
    Case(
        "distances", 12, _of_distances, rounding=0.05, exact=lambda problem: exact(problem, "x", "base"), reads=True,
        floor=(0.5, "torch eager in place", 0.7),
    ),
    # A random linear map of an update to so many numbers that keeps norms, in one read. No other server has it.
]  # fmt: skip
