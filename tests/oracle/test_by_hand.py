"""The oracle against numbers worked out by hand, of what no listing has; and it shares no code with the package."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.oracle import (
    ACE,
    SGD,
    AllClients,
    AMSGrad,
    AsyncFedED,
    Buffer,
    Composed,
    DelayAdaptive,
    DelayAdaptiveASGD,
    FedAC,
    FedBuff,
    Polynomial,
)
from support.oracle.helpers import turn


def test_shares_no_code_with_the_package() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pytest", "hypothesis", "support"}
    for path in (Path(__file__).parents[1] / "support/oracle").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] in allowed, path


# ── settings of every rule ─────────────────────────────────────────────────────────────────────────────────


def test_clipping_and_sample_weights() -> None:
    server = FedBuff([0.0, 0.0], buffer_size=2, clip_norm=1.0, weighting="samples")
    assert turn(server, 0, [3.0, 4.0], num_samples=3)["update_norm"] == 5.0
    turn(server, 1, [0.0, 0.5], num_samples=1)
    assert list(server.x) == pytest.approx([3 * 0.6 / 4, (3 * 0.8 + 0.5) / 4])
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
    dropping = DelayAdaptiveASGD([0.0], 1.0, 0, "drop", buffers={"mean": np.zeros(1)})
    dropping.dispatch(9)
    turn(dropping, 0, [0.0], buffers={"mean": [5.0]})
    dropping.receive(9, [1.0], buffers={"mean": [7.0]})
    assert dropping.buffers["mean"][0] == 5.0


@pytest.mark.parametrize(
    ("rule", "lr", "expected"),
    [
        ("scaled", 0.1, {2: 0.1, 3: 0.1 / 3, 20: 0.1 / 20}),
        ("reciprocal", 0.1, {2: 0.1, 3: 0.1, 20: 0.05}),  # Eq. 4 bites only beyond 1/eta
        ("reciprocal", 1.0, {0: 1.0, 2: 1.0, 4: 0.25}),
    ],
)
def test_delay_rules_of_fadas(rule: Any, lr: float, expected: dict[int, float]) -> None:
    policy = DelayAdaptive(2, rule)
    assert {tau: policy.learning_rate(lr, tau) for tau in expected} == pytest.approx(expected)
    assert DelayAdaptive(None, rule).learning_rate(lr, 1000) == lr


# ── FedAC and AsyncFedED's local steps ─────────────────────────────────────────────────────────────────────


def test_fedac() -> None:
    server = FedAC([0.0, 0.0], lr=1.0, buffer_size=2, betas=(0.5, 0.0), eps=0.0)
    server.dispatch(0)
    server.dispatch(1)
    turn(server, 2, [1.0, 1.0])
    turn(server, 3, [1.0, 1.0])  # D = (1,1): m = 1/2, mhat = 1/4 + 1/2, sqrt(v) = 1
    assert list(server.x) == pytest.approx([0.75, 0.75])
    server.receive(0, [2.0, 2.0], control_delta=[11.0, 0.0])  # cos = 1
    server.receive(1, [-4.0, -4.0], control_delta=[0.0, 22.0])  # cos = -1, kept at 0.1
    d = (1.0 * 2.0 - 0.1 * 4.0) / 1.1
    m = 0.25 + 0.5 * d
    assert server.cosine.weights == pytest.approx([1 / 1.1, 0.1 / 1.1])
    assert list(server.x) == pytest.approx([0.75 + (0.5 * m + 0.5 * d) / d] * 2)
    assert list(server.control) == pytest.approx([10.0, 2.0])


def test_fedac_a_fresh_update_has_weight_one() -> None:
    server = FedAC([0.0], lr=1.0, buffer_size=2)
    server.dispatch(9)
    turn(server, 0, [1.0])
    turn(server, 1, [1.0])
    turn(server, 0, [-5.0])
    server.receive(9, [-1.0])  # cos = -1
    assert server.cosine.weights == pytest.approx([1 / 1.1, 0.1 / 1.1])


def test_fedac_client_correction() -> None:
    x, y, c, c_i = np.array([1.0]), np.array([0.0]), np.array([3.0]), np.array([1.0])
    delta, c_new = FedAC.correct(x, y, c, c_i, epochs=5, client_lr=0.1)
    assert c_new[0] == pytest.approx(1.0 / 0.5 - 2.0)
    assert delta[0] == pytest.approx(0.0 - 0.1 * 2.0 - 1.0)


def test_asyncfeded() -> None:
    """lambda = 1, eps = 1, gamma_bar = 3, kappa = 1/2, K = 10."""
    server = AsyncFedED([0.0, 0.0], lam=1.0, eps=1.0, gamma_bar=3.0, kappa=0.5, local_steps=10)
    server.dispatch(0)
    server.dispatch(1)
    server.receive(0, [6.0, 8.0])  # gamma = 0: eta = 1, K = 10 + floor(1.5)
    assert list(server.x) == [6.0, 8.0]
    assert server.local_steps(0) == 11 and server.local_steps(1) == 10
    server.receive(1, [2.5, 0.0])  # gamma = 10/2.5: eta = 1/5, K = 10 + floor(-1/2)
    assert list(server.x) == pytest.approx([6.5, 8.0])
    assert server.local_steps(1) == 9


def test_asyncfeded_keeps_k_in_its_bounds() -> None:
    for k_max, first, second in ((None, 4, 1), (3, 3, 1)):
        server = AsyncFedED([0.0], 1.0, 1.0, gamma_bar=1.2, kappa=1.0, local_steps=3, euclidean={"k_max": k_max})
        server.dispatch(1)
        turn(server, 0, [1.0])
        assert server.local_steps(0) == first  # floor(1.2) = 1
        server.receive(1, [0.25])  # gamma = 4: 3 + floor(-2.8) = 0, kept at 1
        assert server.local_steps(1) == second


def test_asyncfeded_update_of_zero_and_gamma_max() -> None:
    server = AsyncFedED([0.0], 1.0, 1.0, euclidean={"gamma_max": 2.0})
    server.dispatch(1)
    server.dispatch(2)
    assert not turn(server, 0, [0.0])["applied"]
    assert server.t == 0 and server.local_steps(0) == 10
    turn(server, 0, [1.0])
    assert not server.receive(1, [0.25])["applied"]  # gamma = 4
    assert server.t == 1 and server.x[0] == 1.0 and server.local_steps(1) == 9
    assert server.receive(2, [0.5])["step_size"] == pytest.approx(1 / 3)  # gamma = 2 still passes


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
