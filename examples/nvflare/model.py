"""The model that every site trains. FLARE creates it from its class, so the class has a file of its own."""

from __future__ import annotations

import torch
from torch import nn


class Digits(nn.Module):
    """Maps 8x8 images to ten logits."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden, self.logits = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(torch.relu(self.hidden(x.flatten(1))))
