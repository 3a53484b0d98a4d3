"""What the configuration names: the model, and the metric of a client's evaluation."""

from __future__ import annotations

import numpy as np
import torch


class Net(torch.nn.Sequential):
    """Maps images [n, 64] to ten logits."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def accuracy(labels: np.ndarray, logits: np.ndarray) -> float:
    """The share of right answers, of labels [n] and logits [n, 10]."""
    return float((logits.argmax(1) == labels.reshape(-1)).mean())
