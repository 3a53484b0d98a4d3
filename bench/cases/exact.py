"""Folding an update into an exact sum beside a sum in fp32, in a leaf and in a server."""

from __future__ import annotations

from functools import partial

import torch
from problem import Built, Candidate, Case, Problem

import fastagg
from cases.arrival import arrival, in_turn

FOLDS, LARGEST = 10, 8.0


def _built(problem: Problem, leaf: bool, exact: float | None) -> Built:
    update = problem.update * (0.9 * LARGEST / problem.update.norm())
    start = torch.zeros(problem.size)
    if leaf:
        made = fastagg.Leaf(start, exact=exact)
        return Built(in_turn(lambda _: made.fold(update), FOLDS, FOLDS), None)
    server = fastagg.FedBuff(start, buffer_size=FOLDS, exact=exact)
    return Built(in_turn(arrival(server, update), FOLDS, FOLDS), lambda: server.flat)


def _candidates(leaf: bool) -> list[Candidate]:
    return [
        Candidate("fastagg", partial(_built, leaf=leaf, exact=LARGEST), 6),
        Candidate("fastagg, fp32", partial(_built, leaf=leaf, exact=None), 5),
    ]


CASES = [
    Case(f"exact sum, {where}", 0, partial(_candidates, where == "leaf"), "path", (1_000_000, 10_000_000, 100_000_000),
         apart=1e-4, period=FOLDS, devices=("cpu",))
    for where in ("leaf", "server")
]  # fmt: skip
