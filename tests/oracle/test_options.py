"""Options that every rule shares, synchronous presets, and compositions that no paper has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.oracle import (
    ACE,
    SGD,
    Adagrad,
    Adam,
    AllClients,
    AMSGrad,
    Buffer,
    Composed,
    DelayAdaptive,
    FedAdagrad,
    FedAdam,
    FedAMS,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedYogi,
    Momentum,
    Optimizer,
    Polynomial,
    Yogi,
    fedprox_gradient,
)
from support.oracle.helpers import turn


def test_clipping_and_sample_weights() -> None:
    server = FedBuff([0.0, 0.0], buffer_size=2, clip_norm=1.0, weighting="samples")
    assert turn(server, 0, [3.0, 4.0], num_samples=3)["update_norm"] == 5.0
    turn(server, 1, [0.0, 0.5], num_samples=1)
    assert list(server.x) == pytest.approx([3 * 0.6 / 4, (3 * 0.8 + 0.5) / 4])
    with pytest.raises(ValueError):
        turn(server, 0, [0.0, 0.0])


def test_sample_weights_of_caches() -> None:
    ace = ACE([0.0], 1.0, num_clients=2, weighting="samples")
    turn(ace, 0, [1.0], num_samples=1)
    turn(ace, 1, [4.0], num_samples=2)
    assert ace.x[0] == -3.0
    turn(ace, 0, [4.0], num_samples=6)
    assert ace.x[0] == -7.0


@pytest.mark.parametrize("rule", ["mean", "latest", "keep"])
def test_model_buffers(rule: Any) -> None:
    start = {"mean": np.zeros(1), "count": np.array(7)}
    server = FedBuff([0.0], buffer_size=2, buffers=start, buffer_rule=rule)
    turn(server, 0, [0.0], buffers={"mean": [1.0], "count": 9})
    assert server.buffers["mean"][0] == 0.0 and server.buffers["count"] == 7
    turn(server, 1, [0.0], buffers={"mean": [3.0], "count": 8})
    assert server.buffers["mean"][0] == {"mean": 2.0, "latest": 3.0, "keep": 0.0}[rule]
    assert server.buffers["count"] == (7 if rule == "keep" else 9)


def test_fedavg_is_the_weighted_mean_of_the_client_models() -> None:
    server = FedAvg([1.0], clients_per_round=2)
    server.dispatch(0)
    server.dispatch(1)
    server.receive(0, [1.0], num_samples=30)
    server.receive(1, [-3.0], num_samples=10)
    assert server.x[0] == 0.75 * 2.0 + 0.25 * -2.0
    server.dispatch(0)
    server.outstanding.add((0, 0))
    with pytest.raises(ValueError):
        server.receive(0, [1.0], version=0, num_samples=1)


@pytest.mark.parametrize(
    ("preset", "options", "optimizer"),
    [
        (FedAvgM, {"beta": 0.5}, Momentum(0.3, 0.5)),
        (FedAdam, {"betas": (0.5, 0.7), "eps": 0.1}, Adam(0.3, (0.5, 0.7), 0.1)),
        (FedYogi, {"betas": (0.5, 0.7), "eps": 0.1}, Yogi(0.3, (0.5, 0.7), 0.1)),
        (FedAMS, {"betas": (0.5, 0.7), "eps": 0.1}, AMSGrad(0.3, (0.5, 0.7), 0.1)),
        (FedAdagrad, {"beta": 0.5, "eps": 0.1}, Adagrad(0.3, 0.5, 0.1)),
    ],
)
def test_synchronous_presets_put_the_mean_into_their_optimizer(
    preset: Any, options: dict[str, Any], optimizer: Optimizer
) -> None:
    server, x = preset([0.0], clients_per_round=2, lr=0.3, **options), np.zeros(1)
    for pair in ([4.0, 2.0], [-1.0, 0.0], [0.5, 0.5]):
        for client in (0, 1):
            server.dispatch(client)
        for client, u in enumerate(pair):
            server.receive(client, [u])
        x = optimizer.step(x, np.array([sum(pair) / 2]), 0.3)
        assert server.x[0] == pytest.approx(x[0], rel=1e-14)


def test_fedprox_pulls_towards_the_sent_model() -> None:
    assert fedprox_gradient(np.array([1.0]), np.array([5.0]), np.array([3.0]), 0.5)[0] == 2.0


# ── compositions that no paper has ─────────────────────────────────────────────────────────────────────────


def test_a_gradient_direction_enters_the_optimizer_with_a_minus() -> None:
    server = Composed([0.0], AllClients(2), AMSGrad(1.0, (0.5, 0.5), 1.0), kind="gradient")
    turn(server, 0, [3.0])
    turn(server, 1, [5.0])  # u = 4, D = -4
    assert server.x[0] == pytest.approx(-2 / (8**0.5 + 1))


def test_a_weighting_policy_in_a_buffer() -> None:
    server = Composed([0.0], Buffer(2), SGD(1.0), Polynomial(1.0))
    server.dispatch(9)
    turn(server, 0, [0.0])
    turn(server, 0, [0.0])
    late = server.receive(9, [8.0])
    assert (late["delay"], late["weight"]) == (1, 0.5)
    turn(server, 0, [4.0])
    assert server.x[0] == (8.0 / 2 + 4.0) / 2  # over M, not over the sum of the weights


def test_a_weighting_policy_in_a_cache() -> None:
    """The row keeps the weight it had when it arrived."""
    server = Composed([0.0], AllClients(2, "partial"), SGD(1.0), Polynomial(1.0), kind="gradient")
    server.dispatch(1)
    turn(server, 0, [1.0])
    assert server.receive(1, [8.0])["weight"] == 0.5
    turn(server, 0, [3.0])
    assert server.x[0] == -1.0 - (1.0 + 4.0) / 2 - (3.0 + 4.0) / 2


def test_delay_adaptive_step_of_a_cache_looks_at_the_arriving_client() -> None:
    server = Composed([0.0], AllClients(2, "partial"), SGD(1.0), DelayAdaptive(1), kind="gradient")
    server.dispatch(1)
    for _ in range(4):
        assert turn(server, 0, [0.0])["step_size"] == 1.0
    assert server.receive(1, [8.0])["step_size"] == 0.25
    assert server.x[0] == -1.0
