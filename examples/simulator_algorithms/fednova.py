"""FedNova (Wang et al. 2020): updates are divided by their steps, so that many steps do not count more.

A client sends how many steps it took. The server steps by tau_eff, their mean, along the mean of the divided updates.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import fastagg


@fastagg.register
@dataclass(frozen=True)
class Nova(fastagg.Direction):
    size: int = 10
    takes: ClassVar = {"steps": 1}

    def combine(self, update, facts, state):
        count = state.get("count", torch.zeros(1)) + 1
        steps = state.get("steps", torch.zeros(1)) + facts.extra["steps"] / self.size
        total = state.get("sum", torch.zeros_like(update)) + update / (facts.extra["steps"] * self.size)
        if int(count) < self.size:
            return None, {"sum": total, "steps": steps, "count": count}
        return steps * total, {}


def server(model, *, clients_per_round=10):
    return fastagg.Server(model, Nova(clients_per_round))


def train(model, data, task, state):
    steps = 0

    def count(model):
        nonlocal steps
        steps += 1

    task.descend(model, data, count)
    return task.delta(model), state, {"steps": torch.tensor([float(steps)])}
