"""Training clients in batches gives what training them one by one gives, up to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fastagg.sim import batched, stacked
from fastagg.sim.build import build_data, build_work
from fastagg.sim.client import LocalWork
from fastagg.sim.config import Config, from_dict
from fastagg.sim.data.federated import Samples
from fastagg.sim.simulation import Simulation, run

FEDBUFF = {"name": "FedBuff", "buffer_size": 3}


def config(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "batched",
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
    "logistic": {"model": {"name": "logistic"}},
    "momentum, decay, proximal": {
        "client": {"lr": 0.1, "batch_size": 8, "steps": 5, "momentum": 0.9, "weight_decay": 0.01, "mu": 0.3}
    },
    "rate decays with dispatches": {"client": {"lr": 0.1, "batch_size": 20, "lr_decay": 0.5}},
    "batchnorm": {"model": {"name": "cnn", "widths": [4, 6]}},
    "groupnorm": {"model": {"name": "cnn", "widths": [8, 16], "norm": "group"}},
    "pooling and biases": {"model": {"name": "femnist-cnn", "widths": [3, 5]}},
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
    "rounds": {"algorithm": {"name": "FedAvg", "clients_per_round": 5}, "participation": {"rule": "round"}},
    "synthetic": {"data": {"name": "synthetic", "clients": 9}},
}


@pytest.mark.parametrize("case", CASES)
def test_updates_equal_those_of_one_by_one(case: str) -> None:
    simulation = Simulation(config(**CASES[case]))
    for _ in range(15):  # several versions in flight
        simulation.step()
    jobs = simulation.schedule.in_flight()
    assert simulation.batched is not None and len(jobs) > 2
    together = simulation.batched.train(jobs)
    work = simulation.trainer.gradient if simulation.server.update_kind == "gradient" else simulation.trainer.train
    for job, update in zip(jobs, together, strict=True):
        alone = work(job.task, simulation.data.clients[job.client], job.client, job.number)
        if isinstance(update, torch.Tensor):  # a model without buffers: its parameters, one after the other
            alone = {"all": torch.cat([alone[name].flatten() for name, _ in simulation.module.named_parameters()])}
            update = {"all": update}
        assert update.keys() == alone.keys()
        for name in alone:
            torch.testing.assert_close(
                update[name], alone[name], rtol=1e-3, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
            )


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    return x + torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))


def test_augmented_batches_are_those_of_one_by_one() -> None:
    data = build_data(config().data, 0)
    data = replace(data, clients=[replace(samples, augment=noisy) for samples in data.clients])
    simulation = Simulation(config(), data)
    jobs = simulation.schedule.in_flight()
    assert simulation.batched is not None
    for job, update in zip(jobs, simulation.batched.train(jobs), strict=True):
        alone = simulation.trainer.train(job.task, data.clients[job.client], job.client, job.number)
        parts = [alone[name].flatten() for name, _ in simulation.module.named_parameters()]
        torch.testing.assert_close(update, torch.cat(parts), rtol=1e-3, atol=2e-6)
    mixed = [replace(data.clients[0], augment=None), *data.clients[1:]]
    reason = batched.refusal(simulation.module, build_work(config()), mixed)
    assert reason is not None and "augmented" in reason


@pytest.mark.parametrize("case", CASES)
def test_runs_equal_those_of_one_by_one(case: str) -> None:
    changes = CASES[case]
    together = run(config(**changes))
    alone = run(config(**changes, run={"uploads": 40, "evaluate_every": 3, "batched": False}))
    assert together.summary["batched"] is True and alone.summary["batched"] == "run.batched is off"
    for a, b in zip(together.rows, alone.rows, strict=True):
        assert (a.version, a.time, a.uploads, a.delay_max) == (b.version, b.time, b.uploads, b.delay_max)
        assert a.loss == pytest.approx(b.loss, rel=1e-3)
        assert abs(a.accuracy - b.accuracy) < 0.01


STACKS: dict[str, tuple[tuple[int, int, int], list[nn.Module]]] = {
    "stride over padding": ((2, 7, 6), [nn.Conv2d(2, 3, 3, stride=3, padding=2)]),
    "stride over kernel": ((2, 7, 9), [nn.Conv2d(2, 3, 2, stride=3)]),
    "sides differ": ((1, 9, 5), [nn.Conv2d(1, 3, (3, 2), stride=(2, 1), padding=(0, 1)), nn.Tanh()]),
    "pixels left over": ((2, 8, 8), [nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Conv2d(3, 4, 2, bias=False)]),
    "pooling of odd sizes": ((2, 7, 5), [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2)]),
    "pooling overlaps": ((2, 7, 7), [nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(3, 2, padding=1)]),
    "pooling of equal values": ((1, 6, 6), [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU()]),
    "pooling first": ((2, 6, 6), [nn.MaxPool2d((3, 2)), nn.Conv2d(2, 3, 2)]),
    "batchnorm without weights": ((2, 5, 5), [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=False), nn.ReLU()]),
    "batchnorm of what is kept": ((2, 5, 5), [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.BatchNorm2d(3), nn.ReLU()]),
    "groupnorm": (
        (2, 5, 5),
        [nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 2), nn.GroupNorm(1, 4)],
    ),
    "groupnorm of what is kept": ((2, 5, 5), [nn.Conv2d(2, 4, 3), nn.Tanh(), nn.GroupNorm(2, 4, affine=False)]),
    "groupnorm of the data": ((2, 5, 5), [nn.GroupNorm(2, 2), nn.Conv2d(2, 3, 3)]),
    "batchnorm of the data": ((2, 5, 5), [nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3)]),
    "kept through an alias": ((2, 4, 4), [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Identity(), nn.ReLU()]),
}


@pytest.mark.parametrize("case", STACKS)
def test_gradients_equal_autograd_s(case: str) -> None:
    torch.manual_seed(0)
    shape, layers = STACKS[case]
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(2, *shape)).shape[1]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 4))
    assert stacked.refusal(module) is None
    lengths = [6, 3, 5]
    x, y = torch.randn(3, 6, *shape), torch.randint(4, (3, 6))
    keep = (torch.arange(6) < torch.tensor(lengths).unsqueeze(1)).float()
    clients = [{n: torch.randn_like(t) if t.is_floating_point() else t.clone() for n, t in module.state_dict().items()}
               for _ in lengths]  # fmt: skip
    for state in clients:
        state.update({name: t.abs() for name, t in state.items() if name.endswith("running_var")})
    weights = {name: torch.stack([state[name] for state in clients]) for name in module.state_dict()}
    before = x.clone()
    found = stacked.gradients(module, x, y, weights, keep)
    assert torch.equal(x, before)
    for i, (state, length) in enumerate(zip(clients, lengths, strict=True)):
        module.load_state_dict(state)
        module.zero_grad()
        functional.cross_entropy(module(x[i, :length]), y[i, :length]).backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name][i], parameter.grad, rtol=1e-4, atol=1e-5)
        for name, buffer in module.named_buffers():
            torch.testing.assert_close(weights[name][i], buffer)


def test_what_is_due_later_is_kept_and_nothing_else() -> None:
    simulation = Simulation(config())
    seen = 0
    for _ in range(30):
        simulation.step()
        flying = {(job.client, job.number) for job in simulation.schedule.in_flight()}
        assert simulation.ahead.ready.keys() <= flying
        seen = max(seen, len(simulation.ahead.ready))
    assert 2 < seen < 7


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "STACK", 3 * 4 * 1210)  # three of the model below
    simulation = Simulation(config())
    assert simulation.batched is not None and simulation.batched.most == 3
    assert sum(p.numel() for p in simulation.module.parameters()) == 1210
    whole = run(config())
    assert whole.summary["batched"] is True


def test_stacks_fit_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Samples(torch.zeros(size, 64), torch.zeros(size, dtype=torch.int64)) for size in (9, 20, 5, 12)]
    monkeypatch.setattr(batched, "STEP", 24 * 64 * 4)  # 24 samples of the data, which is wider than the layers
    module = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    work = LocalWork(lr=0.1, batch_size=20, epochs=1)
    trainer = batched.BatchedTrainer(module, work, 0, samples, gradients=False)
    rows = [batched.Row(i, trainer, None, [None], length, None) for i, length in enumerate((8, 16, 8, 16, 8, 8, 20))]  # type: ignore[list-item,arg-type]
    found = [[row.place for row in stack] for stack in trainer.stacks(rows)]
    assert found == [[0, 2], [4, 5], [1], [3], [6]]


@pytest.mark.parametrize(("finely", "expected"), [(False, [8, 8, 16, 32, 50, 50]), (True, [8, 8, 12, 24, 48, 50])])
def test_batches_are_filled_up_to_a_few_lengths(finely: bool, expected: list[int]) -> None:
    assert [batched.filled(length, 50, finely=finely) for length in (1, 8, 9, 17, 33, 49)] == expected
    for length in range(1, 51):
        fill = batched.filled(length, 50, finely=finely)
        assert length <= fill <= max(batched.SHORTEST, 2 * length) and batched.filled(fill, 50, finely=finely) == fill


def test_where_it_does_not_apply_the_reason_is_said() -> None:
    work = build_work(config())
    for module, word in (
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), "Dropout"),
        (nn.LSTM(2, 2), "LSTM"),
        (nn.Conv2d(2, 2, 3, groups=2), "groups"),
        (nn.Conv2d(2, 2, 3, padding="same"), "padding"),
        (nn.MaxPool2d(2, ceil_mode=True), "pooling"),
        (nn.BatchNorm2d(2, track_running_stats=False), "BatchNorm"),
        (nn.Linear(2, 2).requires_grad_(False), "train"),
    ):
        reason = stacked.refusal(module)
        assert reason is not None and word in reason
    wide = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 28 * 28, 10))
    images = [Samples(torch.zeros(40, 1, 28, 28), torch.zeros(40, dtype=torch.int64))]
    reason = batched.refusal(wide, LocalWork(lr=0.1, batch_size=32, epochs=1), images)
    assert reason is not None and "images" in reason
    large = batched.refusal(nn.Linear(1001, 1000), work, [])
    assert large is not None and "large" in large
    replayed = config(delay={"name": "version", "tau_max": 3}, participation={"rule": "all"})
    assert "arrival" in run(replayed).summary["batched"]
    adamw = config(client={"lr": 0.01, "optimizer": "adamw"})
    assert "adamw" in run(adamw).summary["batched"]
