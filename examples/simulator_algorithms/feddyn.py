"""FedDyn (Acar et al. 2021): a linear and a proximal term make the clients' optima that of the federation.

The server keeps h and every client's g_i = alpha (w_i - w), summed up. The model becomes mean(w_k) - h / alpha.
"""

from dataclasses import dataclass

import torch

import fastagg

ALPHA = 0.1


@fastagg.register
@dataclass(frozen=True)
class Dyn(fastagg.Direction):
    size: int = 10
    clients_in_all: int = 20
    alpha: float = ALPHA

    def send(self, client, state):
        return {"g": state.get(f"g {client}", torch.zeros(1))}

    def combine(self, update, facts, state):
        nothing, name = torch.zeros_like(update), f"g {facts.client}"
        total, count = state.get("sum", nothing) + update, state.get("count", torch.zeros(1)) + 1
        state = {"h": nothing, **state, name: state.get(name, nothing) - self.alpha * update}
        if int(count) < self.size:
            return None, {**state, "sum": total, "count": count}
        state["h"] = state["h"] - self.alpha / self.clients_in_all * total
        del state["sum"], state["count"]
        # h was part of the last model: what is added to it now is what h has changed by
        return total / self.size - state["h"] / self.alpha, state


def server(model, *, num_clients, clients_per_round=10):
    return fastagg.Server(model, Dyn(clients_per_round, num_clients))


def train(model, data, task, state):
    weights = list(model.parameters())
    sent = [task.sent[name] for name, _ in model.named_parameters()]
    g = task.extra["g"]
    linear = g.split([w.numel() for w in weights]) if g.numel() > 1 else [torch.zeros(1)] * len(weights)

    def regularise(model):
        for weight, start, term in zip(weights, sent, linear, strict=True):
            weight.grad += ALPHA * (weight.detach() - start) - (term.view_as(weight) if g.numel() > 1 else 0.0)

    task.descend(model, data, regularise)
    return task.delta(model), state
