"""The rules beside the buffered ones: gradients, synchronous rounds, adaptive local steps, the proximal term."""

from typing import Any

import pytest
import torch

from fastagg.sim.recipes.config import Config, from_dict
from fastagg.sim.runs import build
from fastagg.sim.runs.run import run
from fastagg.sim.runs.simulation import Simulation

ALL = {"participation": {"rule": "all"}}
# Nobody is slow: with a full warm-up ACE would wait for them, longer than these runs last.
ONE_STEP = {**ALL, "client": {"lr": 0.1, "batch_size": 16, "steps": 1, "weight_decay": 0.01}, "delay.counts": [7, 5, 0]}
ROUND = {"participation": {"rule": "round"}}


def model(changes, tiny, uploads=40):
    simulation = Simulation(tiny(changes))
    for _ in range(uploads):
        simulation.step()
    return simulation.server.flat.clone()


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "ASGD", "lr": 0.02},
        {"name": "DelayAdaptiveASGD", "lr": 0.02, "delay_threshold": 12},
        {"name": "ACE", "lr": 0.02},
        {"name": "ACE", "lr": 0.02, "cache": "int8"},
        {"name": "ACED", "lr": 0.02, "max_delay": 20},
    ],
)
def test_gradient_rules_learn(tiny, algorithm):
    result = run(tiny({**ONE_STEP, "algorithm": algorithm, "run.uploads": 300, "run.evaluate_every": 50}))
    assert result.summary["stopped"] == "finished"
    assert result.rows[-1].loss < result.rows[0].loss - 0.5


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_gradient_is_one_local_step_over_minus_the_learning_rate(tiny, kind):
    changes = {**ONE_STEP, "algorithm": {"name": "ASGD", "lr": 0.1}, "model": {"name": kind, "widths": [4]}}
    simulation = Simulation(tiny(changes))
    job = simulation.schedule.in_flight()[0]
    samples = simulation.data.clients[job.client]
    gradient = simulation.trainer.gradient(job.task, samples, job.client, job.number)
    delta = simulation.trainer.train(job.task, samples, job.client, job.number)
    parameters = {name for name, _ in simulation.module.named_parameters()}
    gradient, delta = (simulation.server.layout.views(*update) for update in (gradient, delta))
    assert gradient.keys() == delta.keys()
    for name, value in delta.items():
        expected = value / -0.1 if name in parameters else value
        torch.testing.assert_close(gradient[name], expected, rtol=1e-3, atol=2e-6)


def test_ace_gives_the_same_model_wherever_the_gradients_are_kept(tiny):
    kept = {
        mode: model({**ONE_STEP, "algorithm": {"name": "ACE", "lr": 0.3, "mode": mode}}, tiny)
        for mode in ("incremental", "direct", "client")
    }
    torch.testing.assert_close(kept["incremental"], kept["direct"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(kept["client"], kept["direct"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedAMS"])
def test_synchronous_rules_learn(tiny, name):
    algorithm = {"name": name, "clients_per_round": 6}
    proximal = {"client.mu": 0.01} if name == "FedProx" else {}
    config = tiny({**ROUND, "algorithm": algorithm, "client.epochs": 3, "run.uploads": 60, **proximal})
    result = run(config)
    assert result.rows[-1].version == 10
    assert result.rows[-1].loss < result.rows[0].loss
    assert result.summary["tau_max"] == 0


def test_a_round_ends_with_its_slowest_client(tiny):
    simulation = Simulation(tiny({**ROUND, "algorithm": {"name": "FedAvg", "clients_per_round": 5}}))
    delays, now = simulation.schedule._delays, 0.0
    for _ in range(4):
        jobs = simulation.schedule.in_flight()
        assert len({job.client for job in jobs}) == 5
        now += max(delays.duration(job.client, job.number) for job in jobs)
        for left in range(5, 0, -1):
            assert len(simulation.schedule.in_flight()) == left
            assert simulation.step() == (left == 1)
            assert simulation.schedule.now == pytest.approx(now)
    assert simulation.server.version == 4


def test_fedavg_weighs_clients_by_their_samples(tiny):
    changes = {**ROUND, "algorithm": {"name": "FedAvg", "clients_per_round": 3}}
    simulation = Simulation(tiny(changes))
    start, jobs = simulation.server.flat.clone(), simulation.schedule.in_flight()
    deltas, sizes = [], []
    for job in jobs:
        samples = simulation.data.clients[job.client]
        update = simulation.trainer.train(job.task, samples, job.client, job.number)
        deltas.append(update.flat)
        sizes.append(len(samples))
    shares = torch.tensor(sizes) / sum(sizes)
    for _ in jobs:
        simulation.step()
    expected = start + sum(share * delta for share, delta in zip(shares, deltas, strict=True))
    torch.testing.assert_close(simulation.server.flat, expected, rtol=1e-4, atol=1e-5)


def test_asyncfeded_tells_clients_how_many_steps_to_take(tiny):
    algorithm = {"name": "AsyncFedED", "lam": 1.0, "eps": 1.0, "gamma_bar": 3.0, "kappa": 1.0, "local_steps": 4}
    simulation = Simulation(tiny({**ALL, "algorithm": algorithm, "run.fused": False}))
    asked, taken, step = [], [], simulation.trainer._optimizer.step
    simulation.trainer._optimizer.step = lambda: (taken.append(1), step())
    for _ in range(60):
        asked.append(simulation.schedule.in_flight()[0].task.local_steps)
        taken.clear()
        simulation.step()
        assert len(taken) == asked[-1]
    assert asked[0] == 4 and len(set(asked)) > 1


def config(**changes: Any) -> Config:
    values: dict[str, Any] = {
        "name": "echo",
        "algorithm": {"name": "FedEcho", "buffer_size": 3},
        "data": {"name": "digits", "clients": 8, "test_share": 0.4},
        "unlabelled": {"share": 0.5},
        "distill": {"lr": 1e-3, "steps": 2},
        "model": {"name": "mlp", "widths": [16]},
        "client": {"lr": 0.3},
        "delay": {"name": "size-tied"},
        "participation": {"rule": "concurrency", "concurrency": 4},
        "run": {"uploads": 30, "evaluate_every": 2},
    }
    return from_dict({**values, **changes}, "test")


def test_a_run_distils_at_every_version_and_says_what_it_took() -> None:
    summary = run(config()).summary
    assert summary["distillation"]["flushes"] == summary["versions"] == 10
    assert 0 < summary["distillation"]["distillation_seconds"] < summary["wall_seconds"]["server"]
    assert "distillation" not in run(config(algorithm={"name": "FedBuff"})).summary


def test_every_method_is_tested_on_the_same_rest() -> None:
    whole = build.build_data(config())
    echo, buff = (Simulation(config(algorithm={"name": name, "buffer_size": 3})) for name in ("FedEcho", "FedBuff"))
    assert torch.equal(echo.data.test.x, buff.data.test.x)
    assert len(echo.data.test) == len(whole.test) - round(0.5 * len(whole.test))
    held = build.split_unlabelled(config(), whole)[1]
    assert held is not None
    rows = {tuple(x.reshape(-1).tolist()) for x in echo.data.test.x}
    together = rows | {tuple(x.reshape(-1).tolist()) for x in held}
    assert together == {tuple(x.reshape(-1).tolist()) for x in whole.test.x}
    fewer = build.split_unlabelled(config(unlabelled={"share": 0.5, "samples": 10}), whole)
    assert fewer[1] is not None and len(fewer[1]) == 10 and len(fewer[0].test) == len(echo.data.test)
