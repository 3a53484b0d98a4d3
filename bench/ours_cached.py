"""fastagg's candidates for arrivals through client caches, staleness norms and mixing."""

from __future__ import annotations

from functools import partial

import torch
from problem import Built, Candidate, Problem, huge
from torch import Tensor

from fastagg import ops
from fastagg.storage import memory
from fastagg.storage.cache import ClientCache

CLIENTS = 4  # rows that are really there; what an arrival reads and writes does not depend on how many
LEVELS = {"fp32": 127, "bf16": 127, "int8": 127, "int4": 7}


def grid(size: int, format: str) -> Tensor:
    """An update whose every block of 256 holds all levels of the format, so that rounding it is exact and candidates
    with other random numbers must still agree."""
    levels = LEVELS[format]
    return (torch.arange(size, dtype=torch.int64) * 37 % (2 * levels + 1) - levels).to(torch.float32).mul_(2.0**-10)


def whole(size: int) -> int:
    """Elements in whole blocks of 256. Candidates are compared on those: a rest has not all levels in it."""
    return size // 256 * 256


def cached(rule: str, format: str, optimizer: str = "sgd") -> list[Candidate]:
    """The fused arrival."""
    vectors = 3 + len(ops.OPTIMIZERS[optimizer]) + {"fp32": 5, "bf16": 2.5, "int8": 1.4, "int4": 0.8}[format]
    return [Candidate("fastagg", partial(_BUILDS[rule], format=format, optimizer=optimizer), vectors)]


def _state(problem: Problem, format: str) -> tuple[Tensor, Tensor, ClientCache, Tensor]:
    slots = CLIENTS + 1
    cache, total = ClientCache(problem.size, slots, format), memory.zeros(problem.size)
    cache.data.zero_()
    cache.scales.zero_()
    return problem.vector("x", huge), grid(problem.size, format), cache, total


def _ace(problem: Problem, format: str, optimizer: str) -> Built:
    x, update, cache, total = _state(problem, format)
    names = ops.OPTIMIZERS[optimizer]
    moments = dict(zip(names, (huge(problem.size).zero_() for _ in names), strict=True))
    turn = [0]

    def run() -> None:
        slot = turn[0] % CLIENTS
        ops.cached_step_(
            x, update, cache=cache, write=slot, read=slot, sum=total, sum_scale=-1.0 / CLIENTS, client=slot,
            arrival=turn[0], optimizer=optimizer, lr=problem.lr, **moments,
        )  # fmt: skip
        turn[0] += 1

    return Built(run, lambda: x[: whole(problem.size)])


def _aced(problem: Problem, format: str, optimizer: str) -> Built:
    x, update, cache, total = _state(problem, format)
    turn = [0]

    def run() -> None:
        # One client arrives and another expires; it comes back to the sum by the same amount at the next arrival.
        slot, other = turn[0] % 2, 2 + turn[0] % 2
        ops.cached_step_(
            x, update, cache=cache, write=slot, read=slot, sum=total, sum_scale=-1.0 / CLIENTS, client=slot,
            arrival=turn[0], terms=[(other, -1.0 if turn[0] % 4 < 2 else 1.0)], optimizer=optimizer, lr=problem.lr,
        )  # fmt: skip
        turn[0] += 1

    return Built(run, lambda: x[: whole(problem.size)])


def _ca2fl_arrival(problem: Problem, format: str, optimizer: str) -> Built:
    _, update, cache, _ = _state(problem, format)
    acc, turn = problem.vector("acc", huge), [0]

    def run() -> None:
        ops.cached_step_(
            None, update, cache=cache, write=(turn[0] + 1) % CLIENTS, read=turn[0] % CLIENTS, acc=acc,
            arrival=turn[0],
        )  # fmt: skip
        turn[0] += 1

    return Built(run, lambda: acc)


def _distances(problem: Problem, format: str, optimizer: str) -> Built:
    x, base = problem.vectors(("x", "base"), huge)
    update, found = problem.vector("update", huge), torch.zeros(2)

    def run() -> None:
        seen = ops.distances(update, x, base)
        found[0], found[1] = seen.moved, seen.norm

    return Built(run, lambda: found)


def exact_distances(problem: Problem) -> Tensor:
    """The same two norms, their squares added in float64."""
    x, base = problem.vectors(("x", "base"), huge)
    squares = torch.zeros(2, dtype=torch.float64)
    for here, there, update in zip(*(v.split(1 << 24) for v in (x, base, problem.vector("update"))), strict=True):
        squares[0] += (here - there).double().square().sum()
        squares[1] += update.double().square().sum()
    return squares.sqrt()


def _sketch(problem: Problem, format: str, optimizer: str) -> Built:
    update, found = problem.vector("update", huge), torch.zeros(1)

    def run() -> None:
        ops.sketch(update, 4096)

    return Built(run, lambda: found)


def _mixing(problem: Problem, format: str, optimizer: str) -> Built:
    x, base = problem.vectors(("x", "base"), huge)
    update = problem.update
    return Built(lambda: ops.step_(x, update, optimizer="sgd", lr=problem.lr, base=base), lambda: x)


_BUILDS = {
    "ace": _ace,
    "aced": _aced,
    "ca2fl arrival": _ca2fl_arrival,
    "distances": _distances,
    "sketch": _sketch,
    "mixing": _mixing,
}
