"""pFedMe (T. Dinh et al. 2020): a client's model minimises its loss plus lam/2 |theta - w|^2; w moves towards it."""

import torch


def train(model, data, task, state, lam=15.0, inner=5, lr=0.005):
    weights = list(model.parameters())
    w = [weight.detach().clone() for weight in weights]
    for x, y in task.batches(data):
        for _ in range(inner):
            gradients = torch.autograd.grad(task.loss(model, x, y), weights)
            with torch.no_grad():
                for weight, gradient, centre in zip(weights, gradients, w, strict=True):
                    weight -= task.lr * (gradient + lam * (weight - centre))
        with torch.no_grad():
            for weight, centre in zip(weights, w, strict=True):
                centre -= lr * lam * (centre - weight)
    theta = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        for weight, centre in zip(weights, w, strict=True):
            weight.copy_(centre)
    return task.delta(model), theta


def personal(model, state):
    model.load_state_dict(state)
