"""Adding an update to the buffer's sum."""

from __future__ import annotations

import numpy as np
import torch
from peers import native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge

from fastagg import ops


def _ours(problem: Problem) -> Built:
    acc = problem.vector("acc", huge)
    return Built(lambda: ops.accumulate_(acc, problem.update), lambda: acc)


def _torch(problem: Problem) -> Built:
    acc, d = problem.vector("acc"), problem.update
    return Built(lambda: acc.add_(d), lambda: acc)


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


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 1),
        *native_call("accumulate"),
        Candidate("torch add_", _torch, 1),
        Candidate("torch _foreach_add_", _foreach, 1, note="62 layers"),
        Candidate("NumPy as Flower writes it", _flower, 2.5, note="a list of arrays (62 layers)", devices=("cpu",)),
        *plain_loop("accumulate"),
    ]


CASES = [Case("accumulate", 12, _candidates, lr=1.0, floor=(0.65, "torch add_", 0.7))]
