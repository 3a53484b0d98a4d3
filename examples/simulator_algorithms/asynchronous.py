"""Asynchronous rules of the literature as directions and policies of one's own. `algorithm.name` names the functions.

FedASMU and FedPSA adapt a weight, FedFa averages a window, AREA averages exactly, Fair counts who takes part.
Each follows its paper's idea and not its listing: it shows what a rule can see, and is no reproduction of the paper.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

import fastagg


@fastagg.register
@dataclass(frozen=True)
class FedASMU(fastagg.Direction):
    """x <- (1 - a) x + a x_i, where a falls with the delay and with how far x_i is from x (Liu et al. 2024)."""

    mix: float = 0.6
    nearness: float = 0.1
    needs_base = True

    def combine(self, update, facts, state):
        towards = facts.base + update - facts.model
        size = float(towards.norm() / (facts.model.norm() + 1e-12))
        return self.mix / math.sqrt(1 + facts.delay) / (1 + self.nearness * size) * towards, state


@fastagg.register
@dataclass(frozen=True)
class FedPSA(fastagg.Direction):
    """A buffer whose updates are weighed by the softmax of how alike the sensitivities are that clients send with them:
    each to the mean of the buffer (after FedPSA, behavioural staleness)."""

    size: int = 4
    temperature: float = 0.5
    takes: ClassVar = {"sensitivity": 16}

    def combine(self, update, facts, state):
        held = {
            **state,
            f"update {len(state)}": update.clone(),
            f"sense {len(state)}": facts.extra["sensitivity"].clone(),
        }
        updates, senses = ([t for name, t in held.items() if name.startswith(kind)] for kind in ("update", "sense"))
        if len(updates) < self.size:
            return None, held
        like = torch.cosine_similarity(torch.stack(senses), torch.stack(senses).mean(0), dim=1)
        return torch.softmax(like / self.temperature, 0) @ torch.stack(updates), {}


@fastagg.register
@dataclass(frozen=True)
class FedFa(fastagg.Direction):
    """The mean of the last ``window`` trained models becomes the model, at every update (Xu et al. 2024)."""

    window: int = 5
    needs_base = True

    def combine(self, update, facts, state):
        last = [*state.values(), facts.base + update][-self.window :]
        return torch.stack(last).mean(0) - facts.model, {str(place): model for place, model in enumerate(last)}


@fastagg.register
@dataclass(frozen=True)
class AREA(fastagg.Direction):
    """x <- x + (x_i - y_i) / n, with y_i the model that client i sent last: x stays the exact mean of all clients'
    models, however often each answers (Iakovidou and Kim 2024)."""

    clients_in_all: int = 12
    needs_base = True

    def combine(self, update, facts, state):
        name, trained = f"client {facts.client}", facts.base + update
        before = state.get(name, state.get("first", facts.base))
        kept = {"first": facts.base.clone(), **state, name: trained}
        return (trained - before) / self.clients_in_all, kept


@fastagg.register
@dataclass(frozen=True)
class Fair(fastagg.Staleness):
    """An update counts less the more often its client has taken part, and more the larger the loss that it reports."""

    power: float = 0.5
    weighs = counts = True
    takes: ClassVar = {"loss": 1}

    def weigh(self, facts):
        return (1 + facts.taken_part) ** -self.power * (1 + min(float(facts.extra["loss"]), 9.0))


def asmu(model, *, lr=1.0):
    return fastagg.Server(model, FedASMU(), fastagg.SGD(lr))


def psa(model, *, lr=1.0):
    return fastagg.Server(model, FedPSA(), fastagg.SGD(lr))


def fa(model, *, lr=1.0):
    return fastagg.Server(model, FedFa(), fastagg.SGD(lr))


def area(model, *, num_clients, lr=1.0):
    return fastagg.Server(model, AREA(clients_in_all=num_clients), fastagg.SGD(lr))


def fair(model, *, lr=1.0):
    return fastagg.Server(model, fastagg.Buffer(3), fastagg.SGD(lr), Fair())


def with_loss(model, data, task, state):
    """A client that sends its loss."""
    task.descend(model, data)
    with torch.no_grad():
        loss = task.loss(model, data.x, data.y)
    return task.delta(model), state, {"loss": loss.reshape(1)}


def with_sensitivity(model, data, task, state):
    """A client that sends a sketch of its gradient at the model that it was sent: 16 sums of blocks."""
    task.descend(model, data)
    update = task.delta(model)
    model.load_state_dict(task.sent, strict=False)
    gradients = torch.autograd.grad(task.loss(model, data.x, data.y), list(model.parameters()))
    flat = torch.cat([g.flatten() for g in gradients])
    return update, state, {"sensitivity": torch.stack([block.sum() for block in flat.tensor_split(16)])}
