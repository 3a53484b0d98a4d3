"""FedDyn (Acar et al. 2021): a linear and a proximal term make the clients' optima that of the federation.

The server's h is in the model's buffers, as c in scaffold.py: it becomes the mean of h - alpha |S|/N (w_k - w).
The model becomes mean(w_k) - h/alpha.
"""

import torch
from torch import nn


def model(shape, classes, hidden=32):
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(torch.Size(shape).numel(), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )
    for number, weight in enumerate(list(net.parameters())):
        net.register_buffer(f"h_{number}", torch.zeros_like(weight))
    return net


def train(model, data, task, state, alpha=0.1, share=0.5):
    names = [name for name, _ in model.named_parameters()]
    g = [torch.zeros_like(task.sent[name]) for name in names] if state is None else state

    def regularise(model):
        for (name, weight), linear in zip(model.named_parameters(), g, strict=True):
            weight.grad += alpha * (weight.detach() - task.sent[name]) - linear

    task.descend(model, data, regularise)
    update = task.delta(model)
    g = [linear - alpha * update[name] for linear, name in zip(g, names, strict=True)]
    for number, name in enumerate(names):
        update[f"h_{number}"] = task.sent[f"h_{number}"] - alpha * share * update[name]
        update[name] = update[name] - update[f"h_{number}"] / alpha
    return update, g
