"""A step along an update: SGD."""

from __future__ import annotations

from peers import native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge

from fastagg import ops


def _ours(problem: Problem) -> Built:
    x = problem.vector("x", huge)
    return Built(lambda: ops.sgd_(x, problem.update, lr=problem.lr), lambda: x)


def _torch(problem: Problem) -> Built:
    x, d = problem.vector("x"), problem.update
    return Built(lambda: x.add_(d, alpha=problem.lr), lambda: x)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 1),
        *native_call("apply"),
        Candidate("torch add_", _torch, 1),
        *plain_loop("apply"),
    ]


CASES = [Case("apply", 12, _candidates, lr=1.0)]
