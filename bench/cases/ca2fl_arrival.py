"""CA2FL: the difference of an update to its client's row is added to the sum, and the row is replaced."""

from __future__ import annotations

from functools import partial

from peers import compiled, grid, plain_loop
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ClientCache, ops

ROWS = 4  # rows that really exist; what an arrival reads and writes does not depend on their number


def _ours(problem: Problem) -> Built:
    update, cache = grid(problem, "fp32"), ClientCache(problem.size, ROWS + 1, "fp32", problem.device)
    cache.data.zero_()
    acc, turn = problem.vector("acc", huge), [0]

    def run() -> None:
        ops.cached_step_(
            None, update, cache=cache, write=(turn[0] + 1) % ROWS, read=turn[0] % ROWS, acc=acc, arrival=turn[0]
        )
        turn[0] += 1

    return Built(run, lambda: acc)


def _step(acc: Tensor, g: Tensor, old: Tensor, new: Tensor) -> None:
    acc.add_(g).sub_(old)
    new.copy_(g)


def _torch(problem: Problem, compile_: bool) -> Built:
    acc, g = problem.vector("acc"), grid(problem, "fp32")
    old, new = problem.zeros(), problem.zeros()
    run = compiled(_step, acc, g, old, new) if compile_ else partial(_step, acc, g, old, new)
    if compile_:
        acc.copy_(problem.vector("acc"))
    return Built(run, lambda: acc)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 3 + ROWS),
        Candidate("torch eager in place", partial(_torch, compile_=False), 4),
        Candidate("torch.compile", partial(_torch, compile_=True), 4),
        *plain_loop("ca2fl arrival"),
    ]


CASES = [Case("ca2fl arrival", 20, _candidates, lr=0.1)]
