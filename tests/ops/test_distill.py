"""The fused distillation loss against the paper's formulas in float64 (004, Eqs. 3 and 4)."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.distilled import loss_and_gradient, softmax
from support.properties import examples
from torch import Tensor

from fastagg import ops
from fastagg.errors import ShapeMismatch

pytestmark = pytest.mark.kernel

CLASSES = (1, 2, 3, 10, 100, 127, 128, 129, 1000, 1024, 1025, 2500)


def logits(rows: int, classes: int, scale: float, seed: int) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)) * scale


def fused(z: Tensor, targets: ops.SoftTargets, **how: object) -> tuple[float, Tensor]:
    leaf = z.clone().requires_grad_()
    loss = ops.distillation_loss(leaf, targets, **how)  # type: ignore[arg-type]
    loss.backward()
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad


@given(
    rows=st.integers(1, 9),
    classes=st.sampled_from(CLASSES),
    scales=st.tuples(st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]), st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4])),
    alpha=st.sampled_from([(0.2, 0.8), (0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (0.0, 1.0)]),
    seed=st.integers(0, 999),
)
@examples(200)
def test_loss_and_gradient_are_the_papers(
    rows: int, classes: int, scales: tuple[float, float], alpha: tuple[float, float], seed: int
) -> None:
    y, z = logits(rows, classes, scales[0], seed), logits(rows, classes, scales[1], seed + 1)
    loss, gradient = fused(z, ops.soft_targets(y), alpha=alpha)
    p = softmax(y.double().numpy())
    if p.min() == 0.0 or softmax(z.double().numpy()).min() == 0.0:
        # log 0 in the formula as the paper prints it: take the stable form, which the next test checks
        found = reference.soft_targets(y.double())
        loss_64, gradient_64 = reference.distillation(z.double(), *found, None, *alpha)
        want, want_gradient = float(loss_64), gradient_64.numpy()
    else:
        want, want_gradient = loss_and_gradient(y.double().numpy(), z.double().numpy(), *alpha)
    assert loss == pytest.approx(want, rel=2e-6, abs=2e-6)
    np.testing.assert_allclose(gradient.numpy(), want_gradient, rtol=0, atol=4e-7 / rows)


@given(rows=st.integers(1, 5), classes=st.sampled_from(CLASSES), seed=st.integers(0, 999))
def test_the_reference_is_the_papers(rows: int, classes: int, seed: int) -> None:
    y, z = logits(rows, classes, 2.0, seed).double(), logits(rows, classes, 2.0, seed + 1).double()
    loss, gradient = reference.distillation(z, *reference.soft_targets(y), None, 0.2, 0.8)
    want, want_gradient = loss_and_gradient(y.numpy(), z.numpy(), 0.2, 0.8)
    assert float(loss) == pytest.approx(want, rel=1e-12)
    np.testing.assert_allclose(gradient.numpy(), want_gradient, rtol=0, atol=1e-15)


@given(rows=st.integers(1, 5), classes=st.sampled_from(CLASSES), scale=st.sampled_from([1e-3, 1.0, 0.25]))
def test_soft_targets(rows: int, classes: int, scale: float) -> None:
    y = logits(rows, classes, 3.0, rows)
    got, want = ops.soft_targets(y, scale=scale), reference.soft_targets(y.double(), scale=scale)
    torch.testing.assert_close(got.probs.double(), want[0], rtol=4e-6, atol=0)
    assert torch.equal(got.labels, want[1])
    torch.testing.assert_close(got.entropy, want[2], rtol=1e-6, atol=1e-6)
    in_place = y.clone()
    again = ops.soft_targets(in_place, scale=scale, out=in_place)
    assert torch.equal(again.probs, got.probs) and torch.equal(again.labels, got.labels)


def test_gradcheck_in_float64() -> None:
    for classes in (1, 2, 7, 130):
        targets = ops.soft_targets(logits(4, classes, 2.0, 1).double())
        z = logits(4, classes, 2.0, 2).double().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, t=targets: ops.distillation_loss(x, t), z, eps=1e-6, atol=1e-7)


def test_the_gradient_is_scaled_by_what_comes_from_above() -> None:
    targets, z = ops.soft_targets(logits(4, 5, 1.0, 1)), logits(4, 5, 1.0, 2).requires_grad_()
    (3.0 * ops.distillation_loss(z, targets)).backward()
    _, plain = fused(z.detach(), targets)
    torch.testing.assert_close(z.grad, 3.0 * plain)


def test_large_logits_one_class_one_row_and_ties() -> None:
    y = torch.tensor([[1e4, -1e4, 1e4, 0.0]])
    targets = ops.soft_targets(y)
    assert targets.labels.tolist() == [0]  # the first of equal ones
    assert targets.probs.tolist() == [[0.5, 0.0, 0.5, 0.0]]
    assert float(targets.entropy) == pytest.approx(np.log(2))
    loss, gradient = fused(torch.tensor([[-1e4, 1e4, 0.0, 0.0]]), targets)
    assert np.isfinite(loss) and torch.isfinite(gradient).all()
    loss, gradient = fused(torch.tensor([[7.0]]), ops.soft_targets(torch.tensor([[3.0]])))
    assert loss == 0.0 and gradient.tolist() == [[0.0]]


def test_rows_are_read_where_they_are_and_ignored_ones_count_for_nothing() -> None:
    y, z = logits(6, 11, 2.0, 3), logits(4, 11, 2.0, 4)
    rows = torch.tensor([5, 0, 3, 3])
    everything = ops.soft_targets(y)
    loss, gradient = fused(z, everything, rows=rows)
    want, want_gradient = fused(z, ops.SoftTargets(*(part[rows] for part in everything)))
    assert loss == want and torch.equal(gradient, want_gradient)

    everything.labels[0] = -100
    loss, gradient = fused(z, everything, rows=rows)
    keep = torch.tensor([0, 2, 3])
    want, want_gradient = fused(z[keep], ops.SoftTargets(*(part[rows[keep]] for part in everything)))
    assert loss == pytest.approx(want) and gradient[1].abs().sum() == 0
    torch.testing.assert_close(gradient[keep], want_gradient)
    everything.labels.fill_(-100)
    loss, gradient = fused(z, everything, rows=rows)
    assert loss == 0.0 and gradient.abs().sum() == 0


def test_half_precision_and_strided_students() -> None:
    targets, z = ops.soft_targets(logits(4, 9, 1.0, 1)), logits(4, 9, 1.0, 2)
    half = z.to(torch.bfloat16).requires_grad_()
    ops.distillation_loss(half, targets).backward()
    _, want = fused(z.to(torch.bfloat16).float(), targets)
    assert half.grad is not None and torch.equal(half.grad, want.to(torch.bfloat16))
    strided = z.t().contiguous().t().requires_grad_()
    ops.distillation_loss(strided, targets).backward()
    assert strided.grad is not None and torch.equal(strided.grad, fused(z, targets)[1])


def test_nan_is_not_swallowed() -> None:
    z = logits(3, 700, 1.0, 1)
    z[1, 650] = torch.nan
    loss, gradient = fused(z, ops.soft_targets(logits(3, 700, 1.0, 2)))
    assert np.isnan(loss) and gradient[1].isnan().all() and torch.isfinite(gradient[0]).all()


def test_rows_and_labels_out_of_range() -> None:
    targets, z = ops.soft_targets(torch.zeros(3, 4)), torch.zeros(3, 4)
    labels = targets._replace(labels=torch.tensor([0, 1, 4]))
    wrong = [(targets, torch.tensor([0, 1, 3])), (targets, torch.tensor([-1, 0, 0])), (labels, None)]
    for teachers, rows in wrong:
        if ops.on_cuda(z.device):  # emulated
            assert ops.distillation_loss(z, teachers, rows=rows).isnan()
        else:
            with pytest.raises(ShapeMismatch, match="rows" if rows is not None else "labels"):
                ops.distillation_loss(z, teachers, rows=rows)
