"""APFL (Deng et al. 2020): a client's model is alpha v + (1 - alpha) w, of its own v and the shared w."""

from functools import partial

import torch
from torch.func import functional_call


def mixed(v, w, alpha):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in v}


def train(model, data, task, state, alpha=0.5):
    w = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    v = w if state is None else state["v"]
    for x, y in task.batches(data):
        there = [("w", 1.0, w), ("v", alpha, mixed(v, w, alpha))]
        stepped = {}
        for which, factor, point in there:
            point = {name: part.clone().requires_grad_() for name, part in point.items()}
            loss = task.loss(partial(functional_call, model, point), x, y)
            gradients = dict(zip(point, torch.autograd.grad(loss, list(point.values())), strict=True))
            old = w if which == "w" else v
            stepped[which] = {name: old[name] - task.lr * factor * gradients[name] for name in old}
        w, v = stepped["w"], stepped["v"]
    model.load_state_dict(w, strict=False)
    return task.delta(model), {"v": v, "model": mixed(v, w, alpha)}


def personal(model, state):
    model.load_state_dict(state["model"], strict=False)
