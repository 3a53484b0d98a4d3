"""The float64 model against numbers worked out by hand, which no listing has. It shares no code with the package."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import book, formulas, model
from support.traces import Driven

SGD = {"name": "SGD", "lr": 1.0}
OWN = "support.book", "support.formulas"


def test_shares_no_code_with_the_package() -> None:
    for path in (book.__file__, formulas.__file__, model.__file__):
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy", "support"}, path
            assert not any(name.startswith("support.") and name not in OWN for name in names), path


def test_clipping_and_sample_weights() -> None:
    server = Driven([0.0, 0.0], {"name": "Buffer", "size": 2}, SGD, clip_norm=1.0, weighting="samples")
    assert server.turn(0, [3.0, 4.0], num_samples=3)["norm"] == 5.0
    server.turn(1, [0.0, 0.5], num_samples=1)
    assert list(server.x) == pytest.approx([3 * 0.6 / 4, (3 * 0.8 + 0.5) / 4])
    fedavg = Driven([1.0], {"name": "Cohort", "size": 3}, SGD, weighting="samples")  # Eq. 38: the mean of the models
    for client in range(3):
        fedavg.dispatch(client)
    for client, (trained, samples) in enumerate(((3.0, 1), (5.0, 2), (2.0, 5))):
        fedavg.receive(client, [trained - 1.0], num_samples=samples)
    assert fedavg.x[0] == pytest.approx((3.0 * 1 + 5.0 * 2 + 2.0 * 5) / 8)
    direction = {"name": "AllClients", "num_clients": 2, "warmup": "full", "kind": "gradient"}
    ace = Driven([0.0], direction, SGD, weighting="samples")
    for client, update, samples, x in ((0, 1.0, 1, 0.0), (1, 4.0, 2, -3.0), (0, 4.0, 6, -7.0)):
        ace.turn(client, [update], num_samples=samples)
        assert ace.x[0] == x


@pytest.mark.parametrize("rule", ["mean", "latest", "keep"])
def test_model_buffers(rule: Any) -> None:
    server = Driven([0.0], {"name": "Buffer", "size": 2}, SGD, buffers=rule, statistics=(np.zeros(1), 7))
    server.turn(0, [0.0], buffers=(np.array([1.0]), 9))
    server.turn(1, [0.0], buffers=(np.array([3.0]), 8))
    values, counter = server.model.statistics or (np.zeros(1), 0)
    assert values[0] == {"mean": 2.0, "latest": 3.0, "keep": 0.0}[rule]
    assert counter == (7 if rule == "keep" else 9)
    policy = {"name": "DelayAdaptive", "threshold": 0, "rule": "drop"}
    dropping = Driven([0.0], {"name": "Single"}, SGD, policy, buffers=rule, statistics=(np.zeros(1), 7))
    dropping.dispatch(9)
    dropping.turn(0, [0.0], buffers=(np.array([5.0]), 1))
    dropping.receive(9, [1.0], buffers=(np.array([7.0]), 1))
    assert dropping.model.statistics is not None and dropping.model.statistics[0] == (0.0 if rule == "keep" else 5.0)


def test_fedac() -> None:
    steps = {"name": "Lookahead", "lr": 1.0, "betas": (0.5, 0.0), "eps": 0.0}
    server = Driven([0.0, 0.0], {"name": "CosineBuffer", "size": 2}, steps)
    server.dispatch(0)
    server.dispatch(1)
    server.turn(2, [1.0, 1.0])
    server.turn(3, [1.0, 1.0])  # D = (1,1): m = 1/2, mhat = 1/4 + 1/2, sqrt(v) = 1
    assert list(server.x) == pytest.approx([0.75, 0.75])
    server.receive(0, [2.0, 2.0], control=np.array([11.0, 0.0]))  # cos = 1
    server.receive(1, [-4.0, -4.0], control=np.array([0.0, 22.0]))  # cos = -1, kept at 0.1
    d = (1.0 * 2.0 - 0.1 * 4.0) / 1.1
    m = 0.25 + 0.5 * d
    assert list(server.x) == pytest.approx([0.75 + (0.5 * m + 0.5 * d) / d] * 2)
    assert list(server.model.control) == pytest.approx([10.0, 2.0])


def asyncfeded(**how: Any) -> Driven:
    usual = {"name": "Euclidean", "lam": 1.0, "eps": 1.0, "gamma_bar": 3.0, "kappa": 1.0, "local_steps": 10}
    return Driven([0.0, 0.0], {"name": "Single"}, SGD, {**usual, **how})


def test_asyncfeded() -> None:
    server = asyncfeded(kappa=0.5)
    server.dispatch(0)
    server.dispatch(1)
    server.receive(0, [6.0, 8.0])  # gamma = 0: eta = 1, K = 10 + floor(1.5)
    assert list(server.x) == [6.0, 8.0]
    server.receive(1, [2.5, 0.0])  # gamma = 10/2.5: eta = 1/5, K = 10 + floor(-1/2)
    assert list(server.x) == pytest.approx([6.5, 8.0])
    assert server.model.local_steps == {0: 11, 1: 9}


def test_asyncfeded_keeps_k_in_its_bounds() -> None:
    for most, first, second in ((None, 4, 1), (3, 3, 1)):
        server = asyncfeded(gamma_bar=1.2, local_steps=3, max_local_steps=most)
        server.dispatch(1)
        server.turn(0, [1.0, 0.0])
        server.receive(1, [0.25, 0.0])  # gamma = 4: 3 + floor(-2.8) = 0, kept at 1
        assert server.model.local_steps == {0: first, 1: second}


def test_asyncfeded_update_of_zero_and_gamma_max() -> None:
    server = asyncfeded(gamma_max=2.0)
    server.dispatch(1)
    server.dispatch(2)
    assert not server.turn(0, [0.0, 0.0])["applied"] and server.model.version == 0
    server.turn(0, [1.0, 0.0])
    assert not server.receive(1, [0.25, 0.0])["applied"]  # gamma = 4
    assert server.model.version == 1 and server.x[0] == 1.0 and server.model.local_steps[1] == 9
    assert server.receive(2, [0.5, 0.0])["step_size"] == pytest.approx(1 / 3)  # gamma = 2 still passes


def test_a_weighting_policy_in_a_buffer_and_in_a_cache() -> None:
    """A buffer divides by M, not by the sum of the weights. A row keeps the weight that it had when it arrived."""
    policy = {"name": "Polynomial", "a": 1.0}
    server = Driven([0.0], {"name": "Buffer", "size": 2}, SGD, policy)
    server.dispatch(9)
    server.turn(0, [0.0])
    server.turn(0, [0.0])
    late = server.receive(9, [8.0])
    assert (late["delay"], late["weight"]) == (1, 0.5)
    server.turn(0, [4.0])
    assert server.x[0] == (8.0 / 2 + 4.0) / 2
    direction = {"name": "AllClients", "num_clients": 2, "warmup": "partial", "kind": "gradient"}
    cache = Driven([0.0], direction, SGD, policy)
    cache.dispatch(1)
    cache.turn(0, [1.0])
    assert cache.receive(1, [8.0])["weight"] == 0.5
    cache.turn(0, [3.0])
    assert cache.x[0] == -1.0 - (1.0 + 4.0) / 2 - (3.0 + 4.0) / 2
