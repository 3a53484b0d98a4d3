"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates correct the drift of local steps.

The server keeps c and every client's c_i. A client is sent both, and sends what c_i becomes: it need keep nothing.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import fastagg


@fastagg.register
@dataclass(frozen=True)
class Scaffold(fastagg.Direction):
    """The mean of a round of ``size`` updates; c moves by |S|/N times the mean of c_i_new - c_i."""

    size: int = 10
    clients_in_all: int = 20
    takes: ClassVar = {"c_i": None}

    def send(self, client, state):
        none = torch.zeros(1)
        return {"c": state.get("c", none), "c_i": state.get(f"c {client}", none)}

    def combine(self, update, facts, state):
        new, name = facts.extra["c_i"], f"c {facts.client}"
        state = {"sum": torch.zeros_like(update), "c": torch.zeros_like(update), "count": torch.zeros(1), **state}
        moved = (new - state.get(name, torch.zeros_like(new))) / self.clients_in_all
        state |= {name: new.clone(), "sum": state["sum"] + update / self.size, "count": state["count"] + 1}
        state["next"] = state.get("next", state["c"]) + moved
        if int(state["count"]) < self.size:
            return None, state
        done, c = state.pop("sum"), state.pop("next")
        return done, {**state, "c": c, "count": torch.zeros(1)}


def server(model, *, num_clients, clients_per_round=10):
    return fastagg.Server(model, Scaffold(clients_per_round, num_clients))


def train(model, data, task, state):
    weights, steps = list(model.parameters()), 0
    sizes = [weight.numel() for weight in weights]
    c, mine = (task.extra[name] if task.extra[name].numel() > 1 else torch.zeros(sum(sizes)) for name in ("c", "c_i"))
    drift = (c - mine).split(sizes)

    def correct(model):
        nonlocal steps
        steps += 1
        for weight, away in zip(weights, drift, strict=True):
            weight.grad += away.view_as(weight)

    task.descend(model, data, correct)
    update = task.delta(model)
    flat = torch.cat([update[name].flatten() for name, _ in model.named_parameters()])
    return update, state, {"c_i": mine - c - flat / (steps * task.lr)}
