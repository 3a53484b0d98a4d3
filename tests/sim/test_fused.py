"""Clients that train without torch send what torch's send, up to rounding; or the run says why torch trains them."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cifar import crop_and_flip
from torch import nn

from fastagg import sim
from fastagg.errors import ConfigError
from fastagg.sim.clients.client import LocalTrainer
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.runs.build import build_data, build_device
from fastagg.sim.runs.passed import configured
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation
from fastagg.sim.seeds import generator

from .test_resume import CASES, GRADIENTS

# Every recipe that is stopped and goes on in test_resume.py, and what those do not have.
FUSED: dict[str, dict[str, Any]] = {
    **{name: case for name, case in CASES.items() if not case.keys() & {"run.fused"} and "measured" not in name},
    "ragged, several epochs": {"client.batch_size": 20, "client.epochs": 3},
    "momentum, decay, proximal": {
        "client": {"lr": 0.1, "batch_size": 8, "steps": 5, "momentum": 0.9, "weight_decay": 0.01, "mu": 0.3}
    },
    "rate decays with dispatches": {"client.lr_decay": 0.5},
    "gradients, batchnorm, decay": {
        **GRADIENTS,
        "algorithm": {"name": "ASGD", "lr": 0.1},
        "model": {"name": "cnn", "widths": [4, 6]},
        "client.weight_decay": 0.1,
    },
    "synthetic": {
        "data": {"name": "synthetic:load", "clients": 9},
        "model": {"name": "logistic"},
    },
}


def agree(simulation: Simulation) -> None:
    """Updates of the tasks at hand are those of torch."""
    assert isinstance(simulation.trainer, FusedTrainer)
    by_torch = LocalTrainer(simulation.module, simulation.trainer._work, simulation.config.seed)
    kind = "gradient" if simulation.server.update_kind == "gradient" else "train"
    schedule = simulation.schedule
    for job in schedule.in_flight()[:5] or [schedule.next() for _ in range(5)]:
        samples = simulation.data.clients[job.client]
        update, other = (
            getattr(trainer, kind)(job.task, samples, job.client, job.number)
            for trainer in (simulation.trainer, by_torch)
        )
        update = simulation.server.layout.views(*update)
        assert update.keys() == other.keys()
        for name in other:
            torch.testing.assert_close(update[name], other[name], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("case", FUSED)
def test_updates_equal_torch_s(tiny: Any, case: str) -> None:
    simulation = Simulation(tiny(FUSED[case]))
    for _ in range(13):  # several versions in flight
        simulation.step()
    agree(simulation)


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return x + torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))


def test_augmented_batches_are_those_of_torch(tiny: Any) -> None:
    data = build_data(tiny())
    agree(Simulation(tiny(), replace(data, clients=[replace(samples, augment=noisy) for samples in data.clients])))


def test_a_run_that_torch_trains_says_why_once(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    def drawing(shape: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))

    with caplog.at_level(logging.INFO, "fastagg"):
        result = sim.run(tiny(), model=drawing)
    assert "Dropout" in result.summary["fused"]
    assert [record.message for record in caplog.records] == [f"clients are trained by torch: {result.summary['fused']}"]
    adamw = tiny({"client.optimizer": "adamw"})
    assert "adamw" in run(adamw).summary["fused"]


def test_a_network_that_was_proved_is_the_one_that_is_returned(tiny: Any) -> None:
    """What a run prints and what torch finds with the model that it returns are one accuracy."""
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(288), nn.Linear(288, 10))
    work = {"lr": 0.3, "batch_size": 500, "epochs": 5}  # of all samples, so that no batch has one
    given = {"model": lambda shape, classes: network}
    simulation = Simulation(configured(tiny({"client": work, "run.uploads": 60}), given))
    assert isinstance(simulation.trainer, FusedTrainer)
    while simulation.done() < 1:
        simulation.step()
    row = simulation.evaluate()
    network.load_state_dict(simulation.server.parameters())
    test = simulation.data.test
    found = (network.eval()(test.x).argmax(1) == test.y).float().mean()
    assert row.accuracy == pytest.approx(float(found), abs=0.006) and float(found) > 0.5


def test_a_batch_of_one_is_refused_where_torch_refuses_it(tiny: Any) -> None:
    def network(shape: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

    data = build_data(tiny())
    size = len(data.clients[3])
    with pytest.raises(ConfigError, match=r"client\.batch_size: client \d+ has \d+ samples and so a batch of one"):
        sim.run(tiny({"client.batch_size": size - 1, "participation": {"rule": "all"}}), model=network)


def test_an_exception_in_a_thread_comes_out_and_the_threads_end(tiny: Any) -> None:
    def broken(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        raise ValueError("no such picture")

    data = build_data(tiny())
    data = replace(data, clients=[replace(samples, augment=broken) for samples in data.clients])
    with pytest.raises(ValueError, match="no such picture"):
        sim.run(tiny(), data=data, workers=2)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_device_that_is_not_here_is_a_config_error():
    for name in ("cuda:99", "nowhere", ""):
        with pytest.raises(ConfigError, match=r"run\.device"):
            build_device(name)
    assert build_device("cpu") == torch.device("cpu")


def test_data_moves_whole():
    samples = Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), crop_and_flip)
    data = FederatedData([samples, samples], samples, classes=2)
    moved = data.to(torch.device("meta"))
    parts = [*moved.clients, moved.test]
    assert {tensor.device.type for part in parts for tensor in (part.x, part.y)} == {"meta"}
    assert all(part.augment is crop_and_flip for part in parts)


@needs_gpu
@pytest.mark.cuda
def test_a_run_on_a_gpu_is_the_run_on_the_cpu_up_to_rounding(tiny):
    here, there = (run(tiny({"run.device": device, "run.uploads": 12})) for device in ("cpu", "cuda"))
    for a, b in zip(here.rows, there.rows, strict=True):
        assert (a.version, a.uploads, a.time) == (b.version, b.uploads, b.time)
        assert a.loss == pytest.approx(b.loss, rel=1e-3)


@needs_gpu
@pytest.mark.cuda
def test_crops_on_a_gpu_are_those_on_the_cpu():
    x = torch.randn(8, 3, 32, 32)
    here, there = (crop_and_flip(x.to(device), generator(0, "a")) for device in ("cpu", "cuda"))
    assert torch.allclose(here, there.cpu(), atol=1e-6)
