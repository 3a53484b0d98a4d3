"""Clients that train without torch send what torch's send, up to rounding; or the run says why torch trains them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastagg.errors import ConfigError
from fastagg.sim.clients.client import LocalTrainer
from fastagg.sim.clients.fused import FusedTrainer
from fastagg.sim.one.build import build_data
from fastagg.sim.one.run import run
from fastagg.sim.one.simulation import Simulation
from fastagg.sim.recipes.config import Config, from_dict

FEDBUFF = {"name": "FedBuff", "buffer_size": 3}


def config(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "fused",
        "algorithm": FEDBUFF,
        "data": {"name": "digits", "clients": 12, "alpha": 0.3},
        "model": {"name": "mlp", "widths": [16]},
        "client": {"lr": 0.1, "batch_size": 20},
        "delay": {"name": "three-class"},
        "participation": {"rule": "concurrency", "concurrency": 7},
        "run": {"uploads": 40, "evaluate_every": 3},
    }
    return from_dict({**values, **changes}, "test")


CASES: dict[str, dict[str, Any]] = {
    "mlp, ragged, several epochs": {"client": {"lr": 0.1, "batch_size": 20, "epochs": 3}},
    "momentum, decay, proximal": {
        "client": {"lr": 0.1, "batch_size": 8, "steps": 5, "momentum": 0.9, "weight_decay": 0.01, "mu": 0.3}
    },
    "rate decays with dispatches": {"client": {"lr": 0.1, "batch_size": 20, "lr_decay": 0.5}},
    "batchnorm": {"model": {"name": "cnn", "widths": [4, 6]}},
    "adaptive steps": {
        "algorithm": {"name": "AsyncFedED", "lam": 1.0, "eps": 1.0, "gamma_bar": 3.0, "kappa": 1.0, "local_steps": 4},
        "participation": {"rule": "all"},
    },
    "gradients": {
        "algorithm": {"name": "ACE", "lr": 0.1},
        "client": {"lr": 0.1, "steps": 1, "weight_decay": 0.1},
        "participation": {"rule": "all"},
    },
    "gradients, batchnorm": {
        "algorithm": {"name": "ASGD", "lr": 0.1},
        "model": {"name": "cnn", "widths": [4, 6]},
        "client": {"lr": 0.1, "steps": 1},
        "participation": {"rule": "all"},
    },
    "version delay": {"delay": {"name": "version", "tau_max": 3}, "participation": {"rule": "all"}},
    "synthetic": {"data": {"name": "synthetic", "clients": 9}, "model": {"name": "logistic"}},
}


def agree(simulation: Simulation) -> None:
    """Updates of the tasks at hand are those of torch."""
    assert isinstance(simulation.trainer, FusedTrainer)
    by_torch = LocalTrainer(simulation.module, simulation.trainer._work, simulation.config.seed)
    kind = "gradient" if simulation.server.update_kind == "gradient" else "train"
    for job in [simulation.schedule.next() for _ in range(5)]:
        samples = simulation.data.clients[job.client]
        update, other = (
            getattr(trainer, kind)(job.task, samples, job.client, job.number)
            for trainer in (simulation.trainer, by_torch)
        )
        update = simulation.server.layout.views(*update)
        assert update.keys() == other.keys()
        for name in other:
            torch.testing.assert_close(update[name], other[name], rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_torch_s(case: str) -> None:
    simulation = Simulation(config(**CASES[case]))
    for _ in range(15):  # several versions in flight
        simulation.step()
    agree(simulation)


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return x + torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))


def test_augmented_batches_are_those_of_torch() -> None:
    data = build_data(config().data, 0)
    agree(Simulation(config(), replace(data, clients=[replace(samples, augment=noisy) for samples in data.clients])))


@pytest.mark.parametrize("case", ["batchnorm", "gradients"])
def test_runs_equal_torch_s(case: str) -> None:
    changes = CASES[case]
    fused = run(config(**changes))
    other = run(config(**changes, run={"uploads": 40, "evaluate_every": 3, "fused": False}))
    assert fused.summary["fused"] is True and other.summary["fused"] == "run.fused is off"
    for a, b in zip(fused.rows, other.rows, strict=True):
        assert (a.version, a.time, a.uploads, a.delay_max) == (b.version, b.time, b.uploads, b.delay_max)
        assert a.loss == pytest.approx(b.loss, rel=1e-3)
        assert abs(a.accuracy - b.accuracy) < 0.01


def test_a_run_that_torch_trains_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    def drawing(shape: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, classes))

    with caplog.at_level(logging.INFO, "fastagg"):
        result = run(config(), model=drawing)
    assert "Dropout" in result.summary["fused"]
    assert [record.message for record in caplog.records] == [f"clients are trained by torch: {result.summary['fused']}"]
    adamw = config(client={"lr": 0.01, "optimizer": "adamw"})
    assert "adamw" in run(adamw).summary["fused"]


def test_a_network_that_was_proved_is_the_one_that_is_returned() -> None:
    """What a run prints and what torch finds with the model that it returns are one accuracy."""
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(288), nn.Linear(288, 10))
    work = {"lr": 0.3, "batch_size": 500, "epochs": 5}  # of all samples, so that no batch has one
    simulation = Simulation(config(client=work, run={"uploads": 60}), model=lambda shape, classes: network)
    assert isinstance(simulation.trainer, FusedTrainer)
    while simulation.done() < 1:
        simulation.step()
    row = simulation.evaluate()
    network.load_state_dict(simulation.server.parameters())
    test = simulation.data.test
    found = (network.eval()(test.x).argmax(1) == test.y).float().mean()
    assert row.accuracy == pytest.approx(float(found), abs=0.006) and float(found) > 0.5


def test_a_batch_of_one_is_refused_where_torch_refuses_it() -> None:
    def network(shape: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

    data = build_data(config().data, 0)
    size = len(data.clients[3])
    with pytest.raises(ConfigError, match=r"client\.batch_size: client \d+ has \d+ samples and so a batch of one"):
        run(config(client={"lr": 0.1, "batch_size": size - 1}, participation={"rule": "all"}), model=network)


def test_an_exception_in_a_thread_comes_out_and_the_threads_end() -> None:
    def broken(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        raise ValueError("no such picture")

    data = build_data(config().data, 0)
    data = replace(data, clients=[replace(samples, augment=broken) for samples in data.clients])
    with pytest.raises(ValueError, match="no such picture"):
        run(config(), data=data, workers=2)
