"""Checks that an update is finite, and computes its norm, in one pass that only reads."""

from __future__ import annotations

import torch
from peers import native_call, plain_loop
from problem import Built, Candidate, Case, Problem, huge
from torch import Tensor

from fastagg import ops


def exact(problem: Problem) -> Tensor:
    """Return the update's norm, with its squares added in float64."""
    return torch.stack([piece.double().square().sum() for piece in problem.update.split(1 << 24)]).sum()[None].sqrt()


def _ours(problem: Problem) -> Built:
    update, found = problem.vector("update", huge), torch.zeros(1)
    if problem.device.type == "cuda":  # the form for which the host does not wait
        seen = [ops.judge(update)]

        def judge() -> None:
            seen[0] = ops.judge(update)

        return Built(judge, lambda: seen[0][:1].sqrt())

    def run() -> None:
        found[0] = ops.inspect(update).norm

    return Built(run, lambda: found)


def _torch(problem: Problem) -> Built:
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


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", _ours, 1),
        *native_call("inspect"),
        Candidate("torch vector_norm", _torch, 0, note="finite if the norm is; fp32 sums"),
        Candidate("torch isfinite, norm", _usual, 0.25, note="as usually written"),
        *plain_loop("inspect"),
    ]


# Peers add in fp32. At 110 M elements torch is off by 1.3%.
CASES = [Case("inspect", 4, _candidates, rounding=0.05, exact=exact, reads=True)]
