"""The last update of a buffer: one pass steps along the mean of all."""

from __future__ import annotations

from peers import compiled, native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ops


def _ours(problem: Problem) -> Built:
    x, acc = problem.vectors(("x", "acc"), huge)
    scale = 1.0 / problem.buffer_size
    return Built(lambda: ops.step_(x, problem.update, optimizer="sgd", lr=problem.lr, acc=acc, scale=scale), lambda: x)


def _torch(problem: Problem) -> Built:
    x, acc, d = problem.vector("x"), problem.vector("acc"), problem.update
    step = problem.lr / problem.buffer_size

    def run() -> None:
        # The buffer is cleared next, so it may hold the sum. Only the first run's result is meaningful.
        acc.add_(d)
        x.add_(acc, alpha=step)

    return Built(run, lambda: x)


def _compiled(problem: Problem) -> Built:
    x, acc = problem.vector("x"), problem.vector("acc")
    step = problem.lr / problem.buffer_size

    def flush(x: Tensor, acc: Tensor, d: Tensor) -> None:
        x.add_((acc + d) * step)

    run = compiled(flush, x, acc, problem.update)
    x.copy_(problem.vector("x"))
    return Built(run, lambda: x)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 2),
        *native_call("fedbuff flush"),
        Candidate("torch add_, add_", _torch, 2, note="24 bytes per parameter in two passes"),
        Candidate("torch.compile", _compiled, 2),
        *plain_loop("fedbuff flush"),
    ]


CASES = [Case("fedbuff flush", 16, _candidates, lr=1.0)]
