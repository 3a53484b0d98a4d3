"""AsyncFedED's two norms: of the update, and of the model's change since the client fetched it. It only reads."""

from __future__ import annotations

from functools import partial

import torch
from peers import compiled, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ops


def exact(problem: Problem) -> Tensor:
    """Return the same two norms, with their squares added in float64."""
    squares = torch.zeros(2, dtype=torch.float64, device=problem.device)
    vectors = (*problem.vectors(("x", "base")), problem.update)
    for here, there, update in zip(*(v.split(1 << 24) for v in vectors), strict=True):
        squares[0] += (here - there).double().square().sum()
        squares[1] += update.double().square().sum()
    return squares.sqrt()


def _ours(problem: Problem) -> Built:
    x, base, update = problem.vectors(("x", "base", "update"), huge)
    found = torch.zeros(2)
    if problem.device.type == "cuda":  # the form for which the host does not wait
        judged = [ops.judge(update, x=x, base=base)]

        def judge() -> None:
            judged[0] = ops.judge(update, x=x, base=base)

        return Built(judge, lambda: judged[0][:2].flip(0).sqrt())

    def run() -> None:
        seen = ops.distances(update, x, base)
        found[0], found[1] = seen.moved, seen.norm

    return Built(run, lambda: found)


def _torch(problem: Problem, compile_: bool) -> Built:
    x, base, d = problem.vector("x"), problem.vector("base"), problem.update
    found = torch.zeros(2, device=problem.device)

    def norms(x: Tensor, base: Tensor, d: Tensor) -> None:
        found[0] = torch.linalg.vector_norm(x - base)
        found[1] = torch.linalg.vector_norm(d)

    run = compiled(norms, x, base, d) if compile_ else partial(norms, x, base, d)
    return Built(run, lambda: found)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 3),
        *native_call("distances"),
        Candidate("torch eager in place", partial(_torch, compile_=False), 3),
        Candidate("torch.compile", partial(_torch, compile_=True), 3),
        *plain_loop("distances"),
    ]


CASES = [Case("distances", 12, _candidates, rounding=0.05, exact=exact, reads=True,
              floor=(0.5, "torch eager in place", 0.7))]  # fmt: skip
