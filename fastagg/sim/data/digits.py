"""Handwritten digits from scikit-learn: 1,797 images of 8x8, 10 classes, no download."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from fastagg._types import Foreign
from fastagg.errors import ConfigError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label, standardise
from fastagg.sim.seeds import integer


def load(clients: int, alpha: float, seed: int, min_samples: int = 2, test_share: float = 0.2) -> FederatedData:
    """Return the digits, inputs [1, 8, 8], split over ``clients`` by Dirichlet(alpha) on the labels.

    ``test_share`` of every class stays on the server as the test set. ConfigError if scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise ConfigError('the digits come with scikit-learn: pip install "fastagg[sim]"') from None
    images, labels = _read(load_digits)
    x_train, x_test, y_train, y_test = train_test_split(
        images[:, None],  # [1797, 1, 8, 8], values 0..16
        labels,
        test_size=test_share,
        stratify=labels,
        random_state=integer(seed, "test-split"),
    )
    x_train, x_test = standardise(x_train, x_test)
    return split_by_label(
        Samples(x_train, torch.from_numpy(y_train).long()),
        Samples(x_test, torch.from_numpy(y_test).long()),
        classes=10,
        clients=clients,
        alpha=alpha,
        min_samples=min_samples,
        seed=seed,
    )


@cache
def _read(load_digits: Callable[[], Foreign]) -> tuple[np.ndarray, np.ndarray]:
    """Read images and labels, once for all runs of a process."""
    bunch = load_digits()
    return bunch.images, bunch.target
