"""Measures what a rule in Python costs, in median microseconds of ``receive``: ``python bench/own_rules.py``."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

import fastagg


@dataclass(frozen=True)
class OwnMomentum(fastagg.Optimizer):
    """fastagg's Momentum, in torch."""

    beta: float = 0.9

    def step(self, x, direction, state, lr, round):
        m = self.beta * state.get("m", torch.zeros_like(x)) + direction
        return x + lr * m, {"m": m}


@dataclass(frozen=True)
class OwnSingle(fastagg.Direction):
    """fastagg's Single, in Python."""

    def combine(self, update, facts, state):
        return update.clone(), {}


@dataclass(frozen=True)
class OwnWeight(fastagg.Staleness):
    """fastagg's Polynomial with a = 1, in Python."""

    weighs = True

    def weight(self, delay):
        return 1.0 / (1 + delay)


def measured(size: int, rounds: int) -> dict[str, float]:
    """Return the median microseconds of ``receive`` for each rule. Each has a server. Servers take turns."""
    steps = fastagg.Momentum(lr=1.0)
    rules = {
        "fastagg's": (fastagg.Single(), steps), "a step": (fastagg.Single(), OwnMomentum(lr=1.0)),
        "a combine": (OwnSingle(), steps), "a weight": (fastagg.Single(), steps, OwnWeight()),
    }  # fmt: skip
    servers = {name: fastagg.Server(torch.zeros(size), *rule) for name, rule in rules.items()}
    update, taken = torch.full((size,), 1e-4), {name: [] for name in rules}
    for _ in range(rounds):
        for name, server in servers.items():
            server.dispatch(0)
            begun = time.perf_counter()
            server.receive(0, update)
            taken[name].append(time.perf_counter() - begun)
    return {name: round(1e6 * statistics.median(one), 1) for name, one in taken.items()}


if __name__ == "__main__":
    for size, rounds in ((1_000, 400), (1_000_000, 40)):
        print(size, measured(size, rounds))
