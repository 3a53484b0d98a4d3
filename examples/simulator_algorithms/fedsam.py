"""FedSAM (Qu et al. 2022): each step uses the gradient at the worst point within rho."""

import torch


def train(model, data, task, state, rho=0.05):
    weights = list(model.parameters())
    for x, y in task.batches(data):
        gradients = torch.autograd.grad(task.loss(model, x, y), weights)
        scale = rho / (torch.cat([g.flatten() for g in gradients]).norm() + 1e-12)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight += scale * gradient
        worst = torch.autograd.grad(task.loss(model, x, y), weights)
        with torch.no_grad():
            for weight, gradient, other in zip(weights, gradients, worst, strict=True):
                weight -= scale * gradient + task.lr * other
    return task.delta(model), state
