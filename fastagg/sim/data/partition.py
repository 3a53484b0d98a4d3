"""Dirichlet label split: non-identical client data from one labelled data set."""

from __future__ import annotations

import numpy as np

from fastagg.errors import ConfigError, DataError
from fastagg.sim.seeds import generator


def dirichlet_split(
    labels: np.ndarray, clients: int, alpha: float, seed: int, min_samples: int = 1
) -> list[np.ndarray]:
    """Split sample indices: each class is divided by its own Dirichlet(alpha) draw over the clients.

    Small ``alpha`` gives each client few classes (Dir(0.1) is strongly skewed). Large ``alpha`` gives an even mix. A
    draw may leave a client with too few samples. Then it gets random samples of the client that has the most, until it
    has ``min_samples``. Every index is used exactly once.

    labels: integer array [N]. Returns ``clients`` sorted int64 arrays. ConfigError if alpha <= 0, clients < 1 or
    min_samples < 1. DataError if N < clients * min_samples.
    """
    if clients < 1 or min_samples < 1 or not alpha > 0:
        raise ConfigError(
            f"a Dirichlet split needs clients >= 1, min_samples >= 1 and alpha > 0, "
            f"got {clients}, {min_samples} and {alpha}"
        )
    if len(labels) < clients * min_samples:
        raise DataError(
            f"{len(labels)} samples cannot give each of {clients} clients at least {min_samples}: "
            f"lower the number of clients or min_samples"
        )
    rng = generator(seed, "partition")
    parts: list[list[int]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        # Cutting at rounded cumulative shares loses no sample, however single shares are rounded.
        cuts = np.rint(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        for part, chunk in zip(parts, np.split(indices, cuts), strict=True):
            part.extend(int(i) for i in chunk)
    _fill_up(parts, min_samples, rng)
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts]


def _fill_up(parts: list[list[int]], min_samples: int, rng: np.random.Generator) -> None:
    for part in parts:
        while len(part) < min_samples:
            largest = max(parts, key=len)
            part.append(largest.pop(int(rng.integers(len(largest)))))
