"""Federated learning of handwritten digits in pfl-research, with fastagg as the central optimizer.

python train.py
"""

from __future__ import annotations

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
from sklearn.datasets import load_digits

import fastagg
from fastagg.integrations.pfl import CentralOptimizer

USERS = 20
images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)


class Net(torch.nn.Sequential):
    """Maps images [n, 64] to ten logits. The two methods are what pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def loss(self, x: np.ndarray, y: np.ndarray, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y).long())

    @torch.no_grad()
    def metrics(self, x: np.ndarray, y: np.ndarray, eval: bool = True) -> dict[str, Weighted]:
        right = self(torch.as_tensor(x)).argmax(1) == torch.as_tensor(y)
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y)), "accuracy": Weighted(right.sum(), len(y))}


def main() -> float:
    """Return the accuracy on images that no user has."""
    torch.manual_seed(0)
    np.random.seed(0)
    users = {str(n): [images[:1500][n::USERS], labels[:1500][n::USERS]] for n in range(USERS)}
    federated = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, CentralOptimizer(net, fastagg.AMSGrad(lr=0.03)))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=20, evaluation_frequency=10, train_cohort_size=5, val_cohort_size=None
        ),
        SimulatedBackend(federated, Dataset([images[1500:], labels[1500:]])),
        model,
        NNTrainHyperParams(local_num_epochs=2, local_learning_rate=0.1, local_batch_size=16),
        NNEvalHyperParams(local_batch_size=256),
        callbacks=[],
        send_metrics_to_platform=False,
    )
    right = net(torch.as_tensor(images[1500:])).argmax(1) == torch.as_tensor(labels[1500:])
    return right.float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main():.0%}")
