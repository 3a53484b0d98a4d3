"""FedAsync's mixing of a delta: the model moves towards its client's base plus update."""

from __future__ import annotations

from functools import partial

from peers import compiled, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ops


def _ours(problem: Problem) -> Built:
    x, base = problem.vectors(("x", "base"), huge)
    return Built(lambda: ops.step_(x, problem.update, optimizer="sgd", lr=problem.lr, base=base), lambda: x)


def _torch(problem: Problem, compile_: bool) -> Built:
    x, base, d, lr = problem.vector("x"), problem.vector("base"), problem.update, problem.lr

    def mix(x: Tensor, base: Tensor, d: Tensor) -> None:
        x.mul_(1 - lr).add_(base, alpha=lr).add_(d, alpha=lr)

    run = compiled(mix, x, base, d) if compile_ else partial(mix, x, base, d)
    if compile_:
        x.copy_(problem.vector("x"))
    return Built(run, lambda: x)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 2),
        *native_call("mixing"),
        Candidate("torch eager in place", partial(_torch, compile_=False), 2),
        Candidate("torch.compile", partial(_torch, compile_=True), 2),
        *plain_loop("mixing"),
    ]


CASES = [Case("mixing", 16, _candidates, lr=0.1)]
