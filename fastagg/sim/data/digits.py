"""Handwritten digits from scikit-learn: 1,797 images of 8x8, 10 classes, no download."""

from __future__ import annotations

from functools import cache

import numpy as np

from fastagg.sim.data.federated import FederatedData, split_by_label
from fastagg.sim.data.npz import samples
from fastagg.sim.seeds import integer


def load(clients: int, alpha: float, seed: int, min_samples: int = 2, test_share: float = 0.2) -> FederatedData:
    """Return the digits, inputs [1, 8, 8], split over ``clients`` by Dirichlet(alpha) on the labels.

    ``test_share`` of every class stays on the server as the test set.
    """
    from sklearn.model_selection import train_test_split

    images, labels = _read()
    drawn = integer(seed, "test-split")
    x_train, x_test, y_train, y_test = train_test_split(
        images[:, None], labels, test_size=test_share, stratify=labels, random_state=drawn
    )  # images [N, 1, 8, 8], values 0..16
    train, test = samples(x_train, x_test, y_train, y_test)
    return split_by_label(train, test, 10, clients, alpha, min_samples, seed)


@cache
def _read() -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels, once for all runs of a process."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target
