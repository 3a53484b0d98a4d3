"""What holds for rules besides their formulas (tests/fuzz): what clients do, and small rows in the long run."""

from typing import Any

import numpy as np
import pytest
import torch
from support import inside

import fastagg

pytestmark = pytest.mark.kernel

LR = 0.1


@pytest.mark.parametrize("samples", [17, 215, 1000])
def test_a_sum_that_falls_with_this_answer_keeps_nothing_of_what_it_was(samples: int) -> None:
    ours = fastagg.Server(torch.zeros(1025), fastagg.AllClients(1), fastagg.SGD(1.0), weighting="samples")
    want = torch.zeros(1025, dtype=torch.float64)
    for number, count in enumerate((samples, 1)):
        gradient = torch.randn(1025, generator=torch.Generator().manual_seed(number))
        ours.dispatch(0)
        ours.receive(0, gradient, num_samples=count)
        want -= gradient.double()
    torch.testing.assert_close(ours.flat.double(), want, rtol=0, atol=1e-6)


# -- what clients do ---------------------------------------------------------------------------------------------------


def test_what_a_client_has_sent_adds_up_to_its_last_gradient() -> None:
    client, total = fastagg.clients.GradientDifference(), torch.zeros(50)
    for seed in range(9):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        total += client.difference(gradient)
        torch.testing.assert_close(total, gradient)


def test_drift_correction_is_fedacs() -> None:
    rng = np.random.default_rng(0)
    client, c_i = fastagg.clients.DriftCorrection(), np.zeros(5)
    for _ in range(3):
        x_s, y, control = (rng.standard_normal(5) for _ in range(3))
        c_new = (x_s - y) / (4 * 0.1) - (control - c_i)
        got, change = client.correct(*(torch.from_numpy(v) for v in (x_s, y, control)), steps=4, lr=0.1)
        np.testing.assert_allclose(got.numpy(), y - 0.1 * (control - c_i) - x_s)
        np.testing.assert_allclose(change.numpy(), c_new - c_i)
        c_i = c_new


def test_proximal_term_is_fedproxs() -> None:
    model = torch.nn.Linear(3, 2).double()
    start = [torch.randn_like(p) for p in model.parameters()]
    (model(torch.ones(1, 3, dtype=torch.float64)) ** 2).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    fastagg.clients.add_proximal_gradient_(model, start, mu=0.7)
    for p, g, x_t in zip(model.parameters(), plain, start, strict=True):
        torch.testing.assert_close(p.grad, g + 0.7 * (p.detach() - x_t))


# -- small rows in the long run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_small_caches_equal_fp32_in_expectation(format: Any) -> None:
    size, n, seeds = 400, 4, 300
    gradients = torch.from_numpy(np.random.default_rng(0).standard_normal((8, size)).astype(np.float32))

    def run(cache: Any, seed: int) -> torch.Tensor:
        server = fastagg.ACE(torch.zeros(size), lr=LR, num_clients=n, cache=cache, seed=seed)
        for turn, gradient in enumerate(gradients):
            server.dispatch(turn % n)
            server.receive(turn % n, gradient)
        return server.flat.double()

    exact = run("fp32", 0)
    runs = torch.stack([run(format, seed) - exact for seed in range(seeds)])
    score = runs.mean(0) / (runs.std(0) + 1e-9) * seeds**0.5
    assert float(score.abs().max()) < 6
    assert abs(float(score.mean())) < 5 / size**0.5
    # Each step's mean is off by at most a scale, 1/n of it for each row.
    bound = {"bf16": 2**-7, "int8": 1 / 127, "int4": 1 / 7}[format] * float(gradients.abs().max())
    assert float(runs.abs().max()) <= LR * 5 * bound


@pytest.mark.slow
@pytest.mark.parametrize("format", ["fp32", "int8"])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_mean_does_not_drift_in_a_million_arrivals(format: Any, bias: float) -> None:
    """With bias the rows agree, so that the sum is n times a row and a plain fp32 sum would lose tens of ulp."""
    size, n, arrivals = 4, 100, 1_000_000
    server = fastagg.ACE(torch.zeros(size), lr=0.0, num_clients=n, cache=format, warmup="partial", seed=1)
    rng = np.random.default_rng(0)
    pool = [torch.from_numpy((rng.standard_normal(size) * 0.1 + bias).astype(np.float32)) for _ in range(997)]
    for i in range(arrivals):
        client = i * 7919 % n
        server.dispatch(client)
        server.receive(client, pool[i % 997])
    state = inside.direction(server)
    rows = torch.stack([inside.row_in(state.cache, slot) for slot in range(n)])
    exact = rows.double().mean(0)
    largest = float(rows.abs().max())
    error = (state.sum.double() / n - exact).abs().max()
    # Added up again every 400 arrivals, and off by up to half an ulp of the sum at each of those since.
    assert float(error) <= 12 * float(np.spacing(np.float32(largest)))
