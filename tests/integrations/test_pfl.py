"""pfl-research 0.6: its own federated averaging on the digits, stepping through fastagg."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("pfl")
pytest.importorskip("sklearn")

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel

import fastagg
from fastagg.integrations.pfl import CentralOptimizer
from fastagg.sim.data import digits


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def loss(self, x: Any, y: Any, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(torch.as_tensor(x)), torch.as_tensor(y).long())

    @torch.no_grad()
    def metrics(self, x: Any, y: Any, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


def trained(make: Any, rounds: int, folder: Path | None = None) -> Net:
    torch.manual_seed(0)
    np.random.seed(0)
    net, data = Net(), digits.load(4, alpha=10.0, seed=0)
    users = {str(n): [part.x.numpy(), part.y.numpy()] for n, part in enumerate(data.clients)}
    federated = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    model = PyTorchModel(net, torch.optim.SGD, make(net))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, 1000, 4, None),
        SimulatedBackend(federated, Dataset([data.test.x.numpy(), data.test.y.numpy()])),
        model,
        NNTrainHyperParams(local_num_epochs=2, local_learning_rate=0.1, local_batch_size=32),
        NNEvalHyperParams(local_batch_size=256),
        callbacks=[],
        send_metrics_to_platform=False,
    )
    if folder is not None:
        model.save(str(folder))
    net.accuracy = (net(data.test.x).argmax(1) == data.test.y).float().mean().item()
    return net


def test_amsgrad_learns_the_digits_and_is_saved(tmp_path: Path) -> None:
    made: list[CentralOptimizer] = []

    def make(net: Net) -> CentralOptimizer:
        made.append(CentralOptimizer(net, fastagg.AMSGrad(0.03)))
        return made[-1]

    net = trained(make, 12, tmp_path)
    assert net.accuracy > 0.9 and made[0].server.version == 12
    again = Net()
    optimizer = CentralOptimizer(again, fastagg.AMSGrad(0.03))
    PyTorchModel(again, torch.optim.SGD, optimizer).load(str(tmp_path))
    assert torch.equal(optimizer.server.flat, made[0].server.flat)
    for moment in ("m", "v", "vhat"):
        assert torch.equal(
            optimizer.server.state_dict()["moments"][moment], made[0].server.state_dict()["moments"][moment]
        )


def test_sgd_is_torchs() -> None:
    ours = trained(lambda net: CentralOptimizer(net, fastagg.SGD(1.0)), 3)
    theirs = trained(lambda net: torch.optim.SGD(net.parameters(), 1.0), 3)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_an_adam_that_is_not_torchs_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """docs/integrations/coming-from.md has the calls that are equal, and runs them."""
    CentralOptimizer(Net(), fastagg.Adam(0.03, (0.9, 0.999), bias_correction=True))
    assert "not torch.optim.Adam" not in caplog.text
    CentralOptimizer(Net(), fastagg.Adam(0.03))
    assert (
        "not torch.optim.Adam" in caplog.text and "betas=(0.9, 0.99), eps=1e-08, bias_correction=False" in caplog.text
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_that_were_changed_are_the_model(dtype: torch.dtype) -> None:
    """As with torch's optimizers: momentum goes on, from what ``set_parameters`` wrote."""
    ours, theirs = (torch.nn.Linear(3, 2, dtype=dtype) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    steps = CentralOptimizer(ours, fastagg.Momentum(0.25, 0.5)), torch.optim.SGD(theirs.parameters(), 0.25, 0.5)
    for number in range(4):
        for net, optimizer in zip((ours, theirs), steps, strict=True):
            for parameter in net.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + number)
                if number == 2:
                    parameter.data.fill_(7.0)
            optimizer.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-6 if dtype == torch.float32 else 0.05)


def test_a_bad_mean_changes_nothing_and_schedulers_work() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = CentralOptimizer(net, fastagg.SGD(1.0))
    before = net.weight.detach().clone()
    net.weight.grad = torch.full((2, 2), torch.nan)
    with pytest.raises(fastagg.NonFiniteUpdate, match="weight"):
        optimizer.step()
    assert torch.equal(net.weight, before)
    net.weight.grad = torch.ones(2, 2)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert torch.equal(net.weight, before - 0.5)
