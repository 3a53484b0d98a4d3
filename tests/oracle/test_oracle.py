"""The oracle against numbers worked out by hand."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.oracle import (
    ASGD,
    CA2FL,
    SGD,
    Adagrad,
    Adam,
    AMSGrad,
    Composed,
    DelayAdaptive,
    FedAC,
    FedBuff,
    Momentum,
    Optimizer,
    Single,
    Yogi,
)
from support.oracle.helpers import turn

# ── the oracle itself ──────────────────────────────────────────────────────────────────────────────────────


def test_shares_no_code_with_the_package() -> None:
    allowed = {*sys.stdlib_module_names, "numpy", "pytest", "hypothesis", "support"}
    for path in (Path(__file__).parents[1] / "support/oracle").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {a.name.split(".")[0] for a in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] in allowed, path


def test_a_dispatch_is_answered_once() -> None:
    server = FedBuff([0.0], buffer_size=1)
    assert server.dispatch(3) == 0 == server.dispatch(3)
    server.receive(3, [1.0])
    with pytest.raises(KeyError):
        server.receive(3, [1.0])
    assert server.dispatch(3) == 1
    with pytest.raises(KeyError):
        server.receive(3, [1.0], version=0)
    with pytest.raises(KeyError):
        server.receive(4, [1.0])


def test_two_versions_in_flight_to_one_client() -> None:
    server = ASGD([0.0], lr=1.0)
    server.dispatch(0)
    turn(server, 1, [1.0])
    server.dispatch(0)
    assert server.receive(0, [1.0], version=0)["delay"] == 1
    assert server.receive(0, [1.0])["delay"] == 1  # the version last sent is 1, the server is at 2
    assert server.t == 3 and server.x[0] == -3.0


# ── optimizers ─────────────────────────────────────────────────────────────────────────────────────────────

TWO_STEPS: dict[str, tuple[Optimizer, list[float]]] = {
    # D = 4, then D = 2, eta = 1, b1 = b2 = 1/2, eps = 1
    "sgd": (SGD(1.0), [4.0, 6.0]),
    "momentum": (Momentum(1.0, 0.5), [4.0, 4.0 + 4.0]),
    # m = 2, 2; v = 8, 6
    "adam": (Adam(1.0, (0.5, 0.5), 1.0), [2 / (8**0.5 + 1), 2 / (8**0.5 + 1) + 2 / (6**0.5 + 1)]),
    # vhat = 8, 8
    "amsgrad": (AMSGrad(1.0, (0.5, 0.5), 1.0), [2 / (8**0.5 + 1), 4 / (8**0.5 + 1)]),
    # v = 0 + 8 (sign -1), then 8 - 2 (sign +1)
    "yogi": (Yogi(1.0, (0.5, 0.5), 1.0), [2 / (8**0.5 + 1), 2 / (8**0.5 + 1) + 2 / (6**0.5 + 1)]),
    # v = 16, 20
    "adagrad": (Adagrad(1.0, 0.5, 1.0), [2 / 5, 2 / 5 + 2 / (20**0.5 + 1)]),
    # factor 1/(1-b1^r) = 2, 4/3; sqrt(v)/sqrt(1-b2^r) = 4, sqrt(8)
    "adam corrected": (
        Adam(1.0, (0.5, 0.5), 1.0, bias_correction=True),
        [4 / 5, 4 / 5 + (8 / 3) / (8**0.5 + 1)],
    ),
    # the maximum comes before the correction: vhat = 8, so sqrt(8)/sqrt(3/4) = sqrt(32/3)
    "amsgrad corrected": (
        AMSGrad(1.0, (0.5, 0.5), 1.0, bias_correction=True),
        [4 / 5, 4 / 5 + (8 / 3) / ((32 / 3) ** 0.5 + 1)],
    ),
}


@pytest.mark.parametrize("name", TWO_STEPS)
def test_two_steps_of_each_optimizer(name: str) -> None:
    optimizer, expected = TWO_STEPS[name]
    server = Composed([0.0], Single(), optimizer)
    for d, x in zip([4.0, 2.0], expected, strict=True):
        turn(server, 0, [d])
        assert server.x[0] == pytest.approx(x, rel=1e-14)


# ── buffered ───────────────────────────────────────────────────────────────────────────────────────────────


def test_fedbuff_waits_then_takes_the_mean() -> None:
    server = FedBuff([1.0, 1.0], lr=0.5, buffer_size=2)
    assert turn(server, 0, [2.0, 0.0]) == {
        "applied": False,
        "version": 0,
        "delay": 0,
        "step_size": None,
        "update_norm": 2.0,
        "weight": 1.0,
    }
    assert list(server.x) == [1.0, 1.0]
    out = turn(server, 0, [0.0, 4.0])  # a repeat counts twice
    assert out["applied"] and out["version"] == 1 and out["step_size"] == 0.5
    assert list(server.x) == [1.5, 2.0]


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


def test_ca2fl_by_hand() -> None:
    """n = 3, M = 2, two rounds; client 0 repeats within the second."""
    expected = {
        # round 1: h = 0, D = (2 + 4)/2 = 3, then h = (2 + 4 + 0)/3 = 2
        # round 2, paper: acc = (5-2) + (8-2) = 9, |S| = 1: D = 2 + 9 = 11, then h = (8 + 4)/3 = 4
        # round 3: acc = (1-8) + (7-0) = 0: D = 4
        "start": [3.0, 14.0, 18.0],
        # round 2, latest: acc = (5-2) + (8-5) = 6, over M: D = 2 + 3 = 5
        "latest": [3.0, 8.0, 12.0],
    }
    for repeat in ("start", "latest"):
        server = CA2FL([0.0], num_clients=3, buffer_size=2, repeat=repeat)
        models = []
        for first, second in (((0, 2.0), (1, 4.0)), ((0, 5.0), (0, 8.0)), ((0, 1.0), (2, 7.0))):
            turn(server, first[0], [first[1]])
            turn(server, second[0], [second[1]])
            models.append(server.x[0])
        assert models == expected[repeat]


def test_fedac_by_hand() -> None:
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


def test_fedac_client_correction_by_hand() -> None:
    x, y, c, c_i = np.array([1.0]), np.array([0.0]), np.array([3.0]), np.array([1.0])
    delta, c_new = FedAC.correct(x, y, c, c_i, epochs=5, client_lr=0.1)
    assert c_new[0] == pytest.approx(1.0 / 0.5 - 2.0)
    assert delta[0] == pytest.approx(0.0 - 0.1 * 2.0 - 1.0)
