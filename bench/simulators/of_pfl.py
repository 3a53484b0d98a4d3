"""One run of pfl-research's simulated backend with its federated averaging."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from simulated import BATCH, COHORT, EPOCHS, EVERY, LR, ROUNDS, UPDATES, WARM, data, done, model, tested

from fastagg.timing import Stopwatch


class Net(torch.nn.Module):
    """The model with the two methods that pfl calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def loss(self, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y))

    @torch.no_grad()
    def metrics(self, x: Any, y: Any, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.random.seed(0)
    digits, net = data(), Net()
    users = {str(number): [part.x, part.y] for number, part in enumerate(digits.clients)}
    federated = FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))
    backend = SimulatedBackend(federated, Dataset([digits.test.x, digits.test.y]))
    wrapped = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))

    def rounds(count: int) -> None:
        FederatedAveraging().run(
            NNAlgorithmParams(count, EVERY, COHORT, None),
            backend,
            wrapped,
            NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH),
            NNEvalHyperParams(local_batch_size=None),
            callbacks=[],
            send_metrics_to_platform=False,
        )

    rounds(WARM // COHORT)
    watch = Stopwatch()
    rounds(ROUNDS)
    done(watch.total, UPDATES, tested(net, digits.test))
