"""Asynchronous rules of the literature as directions and policies of one's own. `algorithm.name` names the functions.

FedASMU and FedPSA adapt a weight, FedFa averages a window, AREA averages exactly, Fair counts who takes part.
The formulas are those of the papers as public programs of them have them; each rule says what it leaves out.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

import fastagg


@fastagg.register
@dataclass(frozen=True)
class FedASMU(fastagg.Direction):
    """x <- (1 - a) x + a x_i with a = mu xi / (1 + mu xi) and xi = scale / (sqrt(t) (t - o + 1)^power) + least, o the
    version that the client started from (Liu et al. 2024, arXiv 2312.05770, Eqs. 1 and 2). The paper moves lambda,
    sigma and iota, here ``scale``, ``power`` and ``least``, by the gradient of the loss, and its clients mix in a newer
    model on their way: here they are constants, and clients do not."""

    mu: float = 1.0
    scale: float = 1.0
    power: float = 0.5
    least: float = 0.1
    needs_base = True

    def combine(self, update, facts, state):
        t = facts.version + facts.delay + 1
        xi = self.scale / (math.sqrt(t) * (facts.delay + 1) ** self.power) + self.least
        return self.mu * xi / (1 + self.mu * xi) * (facts.base + update - facts.model), state


@fastagg.register
@dataclass(frozen=True)
class FedPSA(fastagg.Direction):
    """x <- x + sum_i w_i Delta_i over a buffer, w = softmax(k / T). k_i is the cosine of the sketches of what the
    client's model and the server's are sensitive to; T = g M / M_0 + d, M the mean |Delta|^2 of the last ``queue``
    updates and M_0 the first such mean; until then w is even (Lu et al. 2026, arXiv 2602.15337, Algorithm 1, Eqs. 9 and
    13). The paper's server takes its own sketch; here it is the newest client's, of the model that it was sent."""

    size: int = 5
    queue: int = 50
    g: float = 1.0
    d: float = 0.1
    takes: ClassVar = {"sketch": 16, "of_sent": 16}

    def combine(self, update, facts, state):
        now = facts.version + torch.zeros(1)
        norms = torch.cat([state.get("norms", torch.zeros(0)), update.square().sum().view(1)])[-self.queue :]
        held = {**state, f"update {len(state)}": update.clone(), f"sketch {len(state)}": facts.extra["sketch"].clone()}
        held["norms"] = norms
        if now >= held.get("newest", now):
            held |= {"newest": now, "server": facts.extra["of_sent"].clone()}
        if "first" not in held and len(norms) == self.queue:
            held["first"] = norms.mean().view(1)
        updates, sketches = ([t for name, t in held.items() if name.startswith(kind)] for kind in ("update", "sketch"))
        if len(updates) < self.size:
            return None, held
        like = torch.cosine_similarity(torch.stack(sketches), held["server"], dim=1)
        warm = self.g * norms.mean() / held["first"] + self.d if "first" in held else math.inf
        left = {name: held[name] for name in ("norms", "newest", "server", "first") if name in held}
        return torch.softmax(like / warm, 0) @ torch.stack(updates), left


@fastagg.register
@dataclass(frozen=True)
class FedFa(fastagg.Direction):
    """The mean of the last ``window`` trained models becomes the model, at every update once there are as many (Xu et
    al. 2024, arXiv 2404.11015: FedFa that sends parameters)."""

    window: int = 5
    needs_base = True

    def combine(self, update, facts, state):
        last = [*state.values(), facts.base + update][-self.window :]
        queue = {str(place): model for place, model in enumerate(last)}
        return None if len(last) < self.window else torch.stack(last).mean(0) - facts.model, queue


@fastagg.register
@dataclass(frozen=True)
class AREA(fastagg.Direction):
    """x <- x + 1/n sum (x_i - y_i) after ``size`` updates, with y_i the model that client i sent last: x stays the
    exact mean of all clients' models, however often each answers. In the manner of AREA (Iakovidou and Kim 2024, arXiv
    2405.10123): its clients keep y_i and send the difference; here the server keeps it."""

    clients_in_all: int = 12
    size: int = 1
    needs_base = True

    def combine(self, update, facts, state):
        name, trained = f"client {facts.client}", facts.base + update
        state = {"first": facts.base.clone(), "sum": torch.zeros_like(update), "count": torch.zeros(1), **state}
        summed, count = state["sum"] + trained - state.get(name, state["first"]), state["count"] + 1
        kept = {**state, name: trained, "sum": summed, "count": count}
        if int(count) < self.size:
            return None, kept
        return summed / self.clients_in_all, {**kept, "sum": torch.zeros_like(update), "count": torch.zeros(1)}


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


def sketch(model, data, task):
    """16 random sums of |g w - F w^2 / 2| (FedPSA, Eq. 9), g and F = g^2 of a batch that all clients have."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(32, *data.x.shape[1:], generator=draw)
    y = torch.randint(model(x).shape[1], (32,), generator=draw)
    gradients = torch.autograd.grad(task.loss(model, x, y), list(model.parameters()))
    g, w = (torch.cat([array.detach().flatten() for array in arrays]) for arrays in (gradients, model.parameters()))
    return torch.randn(16, len(w), generator=draw) @ (g * w - 0.5 * (g * w) ** 2).abs() / 4


def with_sketch(model, data, task, state):
    """A client that sends what the model that it was sent, and its own, are sensitive to."""
    of_sent = sketch(model, data, task)
    task.descend(model, data)
    return task.delta(model), state, {"sketch": sketch(model, data, task), "of_sent": of_sent}
