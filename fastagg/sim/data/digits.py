"""The handwritten digits of scikit-learn: 1,797 images of 8x8 pixels in 10 classes. They need no download."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from fastagg.sim.data.federated import FederatedData, Samples, split_by_label
from fastagg.sim.seeds import integer


def load(clients: int, alpha: float, seed: int, min_samples: int = 2, test_share: float = 0.2) -> FederatedData:
    """Return the digits, divided among ``clients`` by Dirichlet(alpha) over the labels. Inputs have shape [1, 8, 8].

    A ``test_share`` of every class is the test set. Every client has at least ``min_samples`` samples. The pixels of
    all training images together have mean 0 and deviation 1.
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
    """Return all images [N, 8, 8] and labels [N]. A process reads them only once."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target
