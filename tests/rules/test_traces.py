"""What holds for rules besides their formulas (tests/fuzz): what clients do, and a sum that falls."""

import numpy as np
import pytest
import torch

import fastagg

pytestmark = pytest.mark.kernel


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
