"""The data, the model and the training. This file knows nothing about Flower or fastagg."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST, UNLABELLED = 360, 200  # of 1,797 images


def data(part: int, parts: int) -> tuple[Tensor, Tensor]:
    """Return images [n, 64] in 0..1 and labels [n] of one of ``parts`` clients; ``part=-1`` is the test set."""
    images, labels = shuffled()
    clients = slice(part, len(labels) - TEST - UNLABELLED, parts)
    return (images[-TEST:], labels[-TEST:]) if part < 0 else (images[clients], labels[clients])


def unlabelled() -> Tensor:
    """Return images [n, 64] that are in no client's data and not in the test set. FedEcho's server distils on them."""
    return shuffled()[0][-TEST - UNLABELLED : -TEST]


def shuffled() -> tuple[Tensor, Tensor]:
    """Return all images and labels, in an order that is the same for everybody."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return (torch.tensor(images, dtype=torch.float32) / 16)[order], torch.tensor(labels)[order]


def network() -> nn.Module:
    """Return a small network with BatchNorm, whose statistics and counter are not parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))


def train(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, lr: float, seed: int) -> float:
    """Do local SGD in batches of 32. Return the mean loss."""
    draw, optimizer = torch.Generator().manual_seed(seed), torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    total = 0.0
    for _ in range(steps):
        batch = torch.randint(len(x), (32,), generator=draw)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of right answers."""
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()
