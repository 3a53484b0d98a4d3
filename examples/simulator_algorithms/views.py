"""What a delay law, a sampling rule and a rule can know of the clock and of clients: `view`, and `takes` of a rule.

fastagg.sim.run("recipe.toml", delay=diurnal, sampling=oort, own=UserFunctions(train=with_loss), algorithm=deadline)
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

import fastagg


def oort(idle, time, rng, view, explore=0.1, patience=10.0):
    """The idle client of the largest utility, in the manner of Oort (Lai et al. 2021): its loss times the root of its
    samples, less if its last task took longer than ``patience``; now and then one that has not answered yet."""
    clients = [view.of(client) for client in idle]
    new = [own.client for own in clients if not own.answers]
    if new and (len(new) == len(idle) or rng.random() < explore):
        return new[rng.integers(len(new))]
    known = [own for own in clients if own.answers]
    worth = [float(own.extra["loss"]) * own.samples**0.5 * min(1.0, patience / own.duration) for own in known]
    return known[max(range(len(known)), key=worth.__getitem__)].client


def with_loss(model, data, task, state):
    task.descend(model, data)
    with torch.no_grad():
        loss = task.loss(model, data.x, data.y)
    return task.delta(model), state, {"loss": loss.view(1)}


def diurnal(client, number, steps, rng, view, day=100.0):
    """A task takes longer in a client's night, and after one that took long."""
    night = (view.time / day + client / 50) % 1 < 0.5
    last = view.client.duration or 1.0
    return (3.0 if night else 1.0) * (0.5 + 0.5 * rng.random()) + 0.2 * min(last, 5.0)


@fastagg.register
@dataclass(frozen=True)
class Deadline(fastagg.Direction):
    """The mean of what came within ``every`` of virtual time, whoever is late; at least one update."""

    every: float = 1.0
    takes: ClassVar = {"time": 1}  # of the view, or what a client sends by this name

    def combine(self, update, facts, state):
        now = facts.extra["time"]
        begun, total = state.get("begun", torch.zeros(1)), state.get("sum", torch.zeros_like(update)) + update
        count = state.get("count", torch.zeros(1)) + 1
        if now < begun + self.every:
            return None, {"begun": begun, "sum": total, "count": count}
        return total / count, {"begun": now.clone()}

    def send(self, client, state):
        return {"local_steps": torch.tensor([2.0 if "begun" in state else 1.0])}


def deadline(model, *, every=1.0, lr=1.0):
    return fastagg.Server(model, Deadline(every), fastagg.SGD(lr))
