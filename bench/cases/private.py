"""A round of FedBuff with noise in its last step, beside one without, and beside torch's own passes."""

from __future__ import annotations

from functools import partial

import torch
from problem import Built, Candidate, Case, Problem

import fastagg
from cases.arrival import arrival, in_turn

BUFFER, CLIP = 10, 1.0


def _built(problem: Problem, noise: float | None) -> Built:
    update = problem.update * (0.5 * CLIP / problem.update.norm())
    privacy = None if noise is None else fastagg.Gaussian(noise, CLIP)
    server = fastagg.FedBuff(problem.zeros(), buffer_size=BUFFER, privacy=privacy)
    return Built(in_turn(arrival(server, update), BUFFER, BUFFER), None)


def _torch(problem: Problem) -> Built:
    update = problem.update * (0.5 * CLIP / problem.update.norm())
    model, total = problem.zeros(), problem.zeros()

    def one(k: int) -> None:
        total.add_(update * min(1.0, CLIP / float(update.norm())))
        if k % BUFFER == BUFFER - 1:
            model.add_(total.add_(torch.randn_like(model), alpha=CLIP).div_(BUFFER))
            total.zero_()

    return Built(in_turn(one, BUFFER, BUFFER), None)


def _candidates() -> list[Candidate]:
    return [
        Candidate("fastagg", partial(_built, noise=1.0), 6),
        Candidate("fastagg, clipping alone", partial(_built, noise=0.0), 6),
        Candidate("fastagg, neither", partial(_built, noise=None), 5),
        Candidate("torch eager", _torch, 12),
    ]


CASES = [
    Case("private round", 0, _candidates, "path", (100_000, 1_000_000, 10_000_000, 100_000_000), period=BUFFER),
]  # fmt: skip
