"""Handwritten digits from scikit-learn: 1,797 images of 8x8, 10 classes, no download."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from fastagg.sim.data.federated import FederatedData, Samples, split_by_label
from fastagg.sim.seeds import integer


def load(clients: int, alpha: float, seed: int, min_samples: int = 2, test_share: float = 0.2) -> FederatedData:
    """Return the digits, inputs [1, 8, 8], split over ``clients`` by Dirichlet(alpha) on the labels.

    ``test_share`` of every class stays on the server as the test set.
    """
    from sklearn.model_selection import train_test_split

    images, labels = _read()
    drawn = integer(seed, "test-split")
    x, x_test, y, y_test = train_test_split(images, labels, test_size=test_share, stratify=labels, random_state=drawn)
    mean, deviation = np.float32(x.mean()), np.float32(x.std())
    train, test = (
        Samples(torch.from_numpy((part[:, None].astype(np.float32) - mean) / deviation), torch.from_numpy(labels))
        for part, labels in ((x, y), (x_test, y_test))
    )
    return split_by_label(train, test, 10, clients=clients, alpha=alpha, seed=seed, min_samples=min_samples)


@cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels, once for all runs of a process."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target
