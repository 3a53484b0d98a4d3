"""Synthetic(alpha, beta): every client has its own linear model and its own inputs (FedProx's generator).

    sizes   n_k = int(lognormal(4, 2)) + 50
    model   u_k ~ N(0, alpha);  W_k [60, 10], b_k [10] with entries ~ N(u_k, 1)
    inputs  B_k ~ N(0, beta);   v_k ~ N(B_k, 1)^60;   x ~ N(v_k, diag(j^-1.2)), j = 1..60
    labels  y = argmax(x W_k + b_k)

u_k adds the same number u_k * (1 + sum of x) to all ten scores, so alpha never changes a label. Only the unit noise of
W_k and b_k makes clients' models different. u_k is drawn nevertheless, because the generator defines it.

As in its authors' program, ``alpha`` and ``beta`` are the deviations of u_k and B_k. 90% of each client's samples are
for training. The other samples of all clients form the test set.
"""

from __future__ import annotations

import numpy as np
import torch

from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.seeds import generator

FEATURES = 60
CLASSES = 10
TRAIN_SHARE = 0.9


def client_samples(alpha: float, beta: float, client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return client ``client``'s inputs, float64 [n_k, 60], and labels, int64 [n_k]."""
    rng = generator(seed, "synthetic", client)
    size = int(rng.lognormal(4.0, 2.0)) + 50
    u = rng.normal(0.0, alpha)
    w = rng.normal(u, 1.0, (FEATURES, CLASSES))
    b = rng.normal(u, 1.0, CLASSES)
    v = rng.normal(rng.normal(0.0, beta), 1.0, FEATURES)
    variance = np.arange(1, FEATURES + 1) ** -1.2
    x = rng.normal(v, np.sqrt(variance), (size, FEATURES))
    return x, (x @ w + b).argmax(axis=1)


def load(clients: int, seed: int, alpha: float = 1.0, beta: float = 1.0) -> FederatedData:
    """Generate Synthetic(alpha, beta) for ``clients`` clients; inputs [60], 10 classes."""
    train, test = [], []
    for client in range(clients):
        x, y = client_samples(alpha, beta, client, seed)
        samples = Samples(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))
        # The samples are independent draws, so the first 90% need no shuffling.
        kept, held = torch.arange(len(y), dtype=torch.int64, device="cpu").tensor_split([int(TRAIN_SHARE * len(y))])
        train.append(samples.part(kept))
        test.append(samples.part(held))
    together = Samples(torch.cat([s.x for s in test]), torch.cat([s.y for s in test]))
    return FederatedData(train, together, CLASSES)
