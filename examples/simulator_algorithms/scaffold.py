"""SCAFFOLD (Karimireddy et al. 2020, option II): control variates correct the drift of local steps.

The server's control variate c is in the model's buffers. So it is sent with the model, and becomes the mean of what the
clients of a round send: c + |S|/N (c_i_new - c_i).
"""

import torch
from torch import nn


def model(shape, classes, hidden=32):
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(torch.Size(shape).numel(), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )
    for number, weight in enumerate(list(net.parameters())):
        net.register_buffer(f"c_{number}", torch.zeros_like(weight))
    return net


def train(model, data, task, state, share=0.5):
    names = [name for name, _ in model.named_parameters()]
    c = [task.sent[f"c_{number}"].clone() for number in range(len(names))]
    mine = [torch.zeros_like(part) for part in c] if state is None else state
    steps = 0

    def correct(model):
        nonlocal steps
        steps += 1
        for weight, server, own in zip(model.parameters(), c, mine, strict=True):
            weight.grad += server - own

    task.descend(model, data, correct)
    update = task.delta(model)
    new = [own - s - update[n] / (steps * task.lr) for n, s, own in zip(names, c, mine, strict=True)]
    for number, (server, now, own) in enumerate(zip(c, new, mine, strict=True)):
        update[f"c_{number}"] = server + share * (now - own)
    return update, new
