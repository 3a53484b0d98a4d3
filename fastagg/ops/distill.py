"""Computes FedEcho's distillation loss and its gradient in one pass (the FedEcho paper, Eqs. 3 and 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.ops.checks import address, check
from fastagg.ops.place import CPU, Cuda, place, where
from fastagg.storage import memory

_SOFT_TARGETS = {torch.float32: native.soft_targets_f32, torch.float64: native.soft_targets_f64}
_DISTILL = {torch.float32: native.distill_f32, torch.float64: native.distill_f64}


class SoftTargets(NamedTuple):
    """The teachers' outputs for a batch: R rows, C classes.

    Attributes:
        probs: [R, C] fp32 or fp64, ``p = softmax(y)`` of the teachers' logits y.
        labels: [R] int64, ``argmax y``, the first if several are equal. The loss ignores rows whose label is -100.
        entropy: [R] fp64, each row's entropy ``H = -sum p log p`` in nats.
    """

    probs: Tensor
    labels: Tensor
    entropy: Tensor


def soft_targets(logits: Tensor, *, scale: float = 1.0, out: Tensor | None = None) -> SoftTargets:
    """Return softmax, argmax and entropy of the teachers' logits ``y``, in one call (the FedEcho paper, Eq. 4).

    Args:
        logits: [R, C] fp32 or fp64, contiguous.
        scale: a factor > 0 of the logits. With 1/n, the sum of n teachers' logits becomes their mean.
        out: the tensor that gets the probabilities, shaped like ``logits``. It may be ``logits``. None: a new tensor.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused.
    """
    _matrix("logits", logits)
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"scale: expected a number > 0, got {scale!r}")
    probs = torch.empty_like(logits) if out is None else out
    (rows, classes), device, on = logits.shape, logits.device, _place(logits)
    check("out", probs, (rows, classes), logits.dtype, device)
    labels = memory.empty(rows, device, torch.int64)
    entropy = memory.empty(rows, device, torch.float64)
    batch, said = (rows, classes), (probs.data_ptr(), labels.data_ptr(), entropy.data_ptr(), rows)
    if on is CPU:
        _SOFT_TARGETS[logits.dtype](logits=logits.data_ptr(), scale=scale, batch=batch, out=said)
    else:
        native.cuda.soft_targets(logits=logits.data_ptr(), scale=scale, batch=batch, out=said, where=where(on))
    return SoftTargets(probs, labels, entropy)


def distillation_loss(
    student: Tensor,
    targets: SoftTargets,
    *,
    rows: Tensor | None = None,
    alpha: float | tuple[float, float] = (0.2, 0.8),
) -> Tensor:
    """Return ``mean over rows of alpha*KL(p || softmax(z)) + (1-alpha)*CE(z, argmax y)``, differentiable in z (Eq. 3).

    If ``alpha`` is a pair, ``alpha = Hhat*alpha_max + (1-Hhat)*alpha_min``, where ``Hhat`` is the rows' mean entropy
    divided by ``log C`` (Eq. 4). The forward pass also computes the gradient, ``(softmax(z) - alpha*p -
    (1-alpha)*onehot)/R``. Large logits do not overflow. With C = 1 the loss is 0.

    Args:
        student: z, [R, C] fp32 or fp64 (fp16 and bf16 are widened).
        targets: the teachers' outputs, with ``probs`` of the student's dtype.
        rows: [R] int64, for each of the student's rows the number of the teachers' row. None: row i belongs to row i.
        alpha: a fixed number, or ``(alpha_min, alpha_max)``, 0 <= alpha_min <= alpha_max <= 1.

    Returns:
        A scalar.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: an argument is refused. On CUDA a row or label out of range makes the
            loss NaN instead, because a check would have to wait for the device.
    """
    low, high = alpha_bounds(alpha)
    if student.dtype in (torch.float16, torch.bfloat16):
        student = student.float()
    _matrix("student", student.detach())
    _check_targets(student, targets, rows)
    probs, labels, entropy = targets
    loss: Tensor = _Distillation.apply(student, probs, labels, entropy, rows, low, high)
    return loss


def alpha_bounds(alpha: float | Iterable[float]) -> tuple[float, float]:
    """Return ``alpha`` as ``(alpha_min, alpha_max)``.

    Raises:
        ConfigError: ``alpha`` is not a number or a pair, or not 0 <= alpha_min <= alpha_max <= 1.
    """
    try:
        low, high = (float(alpha), float(alpha)) if isinstance(alpha, (int, float)) else map(float, alpha)
    except (TypeError, ValueError):
        raise ConfigError(f"alpha: expected a number or (alpha_min, alpha_max), got {alpha!r}") from None
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(f"alpha: expected 0 <= alpha_min <= alpha_max <= 1, got {alpha!r}")
    return low, high


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, student: Tensor, probs: Tensor, labels: Tensor, entropy: Tensor, rows: Tensor | None,
        low: float, high: float,
    ) -> Tensor:  # fmt: skip
        on = _place(student)
        rows = None if rows is None else rows.contiguous()
        student, gradient = student.contiguous(), torch.empty_like(student, memory_format=torch.contiguous_format)
        count, classes = student.shape
        batch, said = (count, classes), (probs.data_ptr(), labels.data_ptr(), entropy.data_ptr(), len(probs))
        if on is CPU:
            try:
                mean, _ = _DISTILL[student.dtype](
                    logits=student.data_ptr(), batch=batch, targets=said, which=address(rows), alpha=(low, high),
                    gradient=gradient.data_ptr(),
                )  # fmt: skip
            except IndexError as error:
                raise ShapeMismatch(str(error)) from None
            loss = student.new_tensor(mean)
        else:
            scratch = memory.empty(2 + count, student.device, torch.float64)
            loss = student.new_empty(())
            out = native.cuda.Loss(
                which=address(rows), alpha=(low, high), scratch=scratch.data_ptr(), loss=loss.data_ptr(),
                gradient=gradient.data_ptr(),
            )  # fmt: skip
            native.cuda.distill(logits=student.data_ptr(), batch=batch, targets=said, out=out, where=where(on))
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        # On a GPU, a comparison of `upstream` with 1 would wait for the device. A multiplication does not wait.
        if upstream.device.type != "cpu" or float(upstream) != 1.0:
            gradient = gradient * upstream
        return gradient, None, None, None, None, None, None


def _place(logits: Tensor) -> Cuda:
    """Return where the loss runs. DTypeMismatch: the logits are not fp32, the only type that CUDA kernels take."""
    on = CPU if logits.is_cpu and logits.dtype is torch.float64 else place(logits.device)
    if on is not CPU and logits.dtype is not torch.float32:
        raise DTypeMismatch(
            f"logits: expected float32 on {logits.device}, got {logits.dtype}; convert them by .float()"
        )
    return on


def _matrix(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _DISTILL:
        raise DTypeMismatch(f"{name}: expected float32 or float64 logits, got {tensor.dtype}")
    if tensor.dim() != 2 or tensor.shape[1] == 0:
        raise ShapeMismatch(f"{name}: expected shape [rows, classes], got {list(tensor.shape)}")
    if name == "logits" and not tensor.is_contiguous():
        raise ShapeMismatch(f"{name}: expected a contiguous matrix, got strides {list(tensor.stride())}")


def _check_targets(student: Tensor, targets: SoftTargets, rows: Tensor | None) -> None:
    probs, labels, entropy = targets
    count, classes = probs.shape if probs.dim() == 2 else (-1, -1)
    if classes != student.shape[1] or (rows is None and count != student.shape[0]):
        raise ShapeMismatch(f"student: logits of shape {list(student.shape)}, the teachers' are {list(probs.shape)}")
    check("targets.probs", probs, (count, classes), student.dtype, student.device)
    check("targets.labels", labels, (count,), torch.int64, student.device)
    check("targets.entropy", entropy, (count,), torch.float64, student.device)
    if rows is not None and (rows.dtype is not torch.int64 or rows.shape != student.shape[:1]):
        raise ShapeMismatch(f"rows: expected int64 of shape [{student.shape[0]}], got {rows.dtype} {list(rows.shape)}")
