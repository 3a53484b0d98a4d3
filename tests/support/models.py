"""Models that are difficult for layouts, and a comparison of whole server states."""

from typing import Any

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A ResNet-like model: convolutions, BatchNorm, a shortcut, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head(torch.relu(y + self.body(y)).mean(dim=(2, 3)))


class Tied(nn.Module):
    """Two names for one parameter, and one frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight
        self.frozen = nn.Linear(3, 3)
        for p in self.frozen.parameters():
            p.requires_grad_(False)


def same(a: Any, b: Any) -> bool:
    """Return whether two nested states are equal bit for bit, except for the servers' lives, which are random
    numbers."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return False
        return all(same(a[k], b[k]) for k in a if k not in ("lives", "incarnation", "ids", "id"))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
