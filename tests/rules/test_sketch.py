"""Sketched staleness: linear, unbiased in the square, as precise as promised, and worth its memory."""

from __future__ import annotations

import pytest
import torch
from support.kernels import vector

import fastagg
from fastagg import ops, reference
from fastagg.errors import ConfigError

pytestmark = pytest.mark.kernel

K = 1024


@pytest.mark.parametrize("size", [1, 1000, 1024, 1025, 100_003])
def test_sketch_is_the_reference(size: int, isa: str) -> None:
    update = vector(size, 3)
    got = ops.sketch(update, K, seed=2**35 + 1)
    torch.testing.assert_close(got.double(), reference.sketch(update, K, seed=2**35 + 1), rtol=1e-5, atol=1e-5)


def test_sketch_has_the_same_bits_on_any_thread_count(threads: None) -> None:
    update, seen = vector(300_007, 1), []
    for count in (1, 2, 5):
        fastagg.set_num_threads(count)
        seen.append(ops.sketch(update, 2000))
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])


def test_sketch_is_linear() -> None:
    a, b = vector(5000, 1), vector(5000, 2)
    whole = ops.sketch(a + 3 * b, K).double()
    torch.testing.assert_close(whole, (ops.sketch(a, K) + 3 * ops.sketch(b, K)).double(), rtol=1e-4, atol=1e-3)


def columns(size: int) -> torch.Tensor:
    """Nonzero at one position in every 1,024: a sketch that folds without moving would put all into one bucket."""
    values = torch.zeros(size)
    values[5::1024] = 1.0
    return values


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda d: vector(d, 7), columns])
def test_square_of_the_norm_is_unbiased_with_the_promised_deviation(make: object) -> None:
    size, seeds = 200_000, 400
    update = make(size)  # type: ignore[operator]
    exact = float(update.double().square().sum())
    ratio = torch.tensor([float(ops.sketch(update, K, seed).double().square().sum()) / exact for seed in range(seeds)])
    promised = (2 / K) ** 0.5
    assert abs(float(ratio.mean()) - 1) < 5 * promised / seeds**0.5
    assert float(ratio.std()) < 1.3 * promised


def test_sketch_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigError, match="1024"):
        ops.sketch(torch.zeros(10), 10)


def test_sketched_asyncfeded_follows_the_exact_one() -> None:
    size, clients = 50_000, 5
    how = {"lam": 1.0, "eps": 1.0, "local_steps": 10}
    exact = fastagg.AsyncFedED(torch.zeros(size), **how)
    sketched = fastagg.AsyncFedED(torch.zeros(size), sketch=4096, **how)
    for client in range(clients):
        for server in (exact, sketched):
            server.dispatch(client)
    for turn in range(30):
        client = turn * 3 % clients
        update = vector(size, turn, 1e-2)
        a, b = (server.receive(client, update) for server in (exact, sketched))
        assert b.weight == pytest.approx(a.weight, rel=5 * (2 / 4096) ** 0.5)
        for server in (exact, sketched):
            server.dispatch(client)
    assert exact.memory()["versions"] == 5 * 4 * size  # one version for each client in flight
    assert sketched.memory()["versions"] == 5 * 4 * 4096 + 8 * 4096
    torch.testing.assert_close(sketched.flat, exact.flat, rtol=0.1, atol=1e-3)


def test_sketches_survive_a_checkpoint() -> None:
    server = fastagg.AsyncFedED(torch.zeros(3000), lam=1.0, eps=1.0, sketch=K)
    server.dispatch("a")
    server.dispatch("b")
    server.receive("a", vector(3000, 1))
    other = fastagg.AsyncFedED(torch.zeros(3000), lam=1.0, eps=1.0, sketch=K)
    other.load_state_dict(server.state_dict())
    receipts = [s.receive("b", vector(3000, 2)) for s in (server, other)]
    assert receipts[0] == receipts[1] and receipts[0].delay == 1
    assert torch.equal(server.flat, other.flat)
