"""A network that reads centred digits, adapters that teach it shifted ones, and the training of both."""

from __future__ import annotations

from functools import lru_cache

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEST, RANK = 360, 8  # images; the largest rank of a client
LAYERS = ("0.weight", "2.weight", "4.weight")  # the layers that are adapted


def data(part: int, parts: int) -> tuple[Tensor, Tensor]:
    """Return shifted images [n, 64] in 0..1 and labels [n] of one of ``parts`` clients; ``part=-1`` is the test set."""
    images, labels = _digits(shifted=True)
    return (images[-TEST:], labels[-TEST:]) if part < 0 else (images[part:-TEST:parts], labels[part:-TEST:parts])


@lru_cache(1)
def base() -> nn.Sequential:
    """Return the network that everybody has before: trained on centred digits."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    images, labels = _digits(shifted=False)
    train(network, images[:-TEST], labels[:-TEST], steps=400, lr=0.1, seed=0)
    return network.requires_grad_(False)


def adapted(rank: int, weights: dict[str, Tensor] | None = None, seed: int = 0) -> PeftModel:
    """Return the base, or the base with these weights, with new adapters. B is zero, so the output does not change.

    ``seed`` draws A. Adapters that start anew should have another A each time.
    """
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    network.load_state_dict({**base().state_dict(), **(weights or {})})
    torch.manual_seed(seed)
    # lora_alpha = rank: the scale is 1 for every rank
    return get_peft_model(network, LoraConfig(r=rank, lora_alpha=rank, target_modules=["0", "2", "4"]))


def rank_of(part: int) -> int:
    """Return a client's rank. Clients choose ranks that they can afford."""
    return (2, 4, RANK)[part % 3]


def train(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, lr: float, seed: int) -> float:
    """Do local SGD in batches of 32 on the trainable parameters. Return the mean loss."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
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
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def _digits(shifted: bool) -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    grid = torch.tensor(images, dtype=torch.float32).view(-1, 8, 8) / 16
    return (grid.roll(2, 2) if shifted else grid).reshape(-1, 64)[order], torch.tensor(labels)[order]
