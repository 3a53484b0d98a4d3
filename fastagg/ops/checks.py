"""What every op checks before it calls a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.pieces import Pieces

# In the order of csrc/math/optimizer.h, OptimizerKind; and the moments each one owns.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "amsgrad": ("m", "v", "vhat"),
    "yogi": ("m", "v"),
    "adagrad": ("m", "v"),
    "lookahead": ("m", "v"),
}
CODES = {name: code for code, name in enumerate(OPTIMIZERS)}

Update = Tensor | np.ndarray | Sequence[Any] | Pieces


def address(tensor: Tensor | None) -> int:
    """Where a tensor's memory starts; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def vector(name: str, tensor: Tensor, size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
    """A state vector: 1-D, contiguous, ``size`` elements, on ``device``.

    Raises:
        DTypeMismatch, ShapeMismatch: it is not.
    """
    if tensor.dtype is not dtype:
        raise DTypeMismatch(f"{name}: expected {dtype}, got {tensor.dtype}")
    if tensor.device != device:
        raise DTypeMismatch(f"{name} is on {tensor.device}, the update on {device}")
    if tensor.dim() != 1 or tensor.numel() != size:
        raise ShapeMismatch(f"{name}: expected shape [{size}], got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ShapeMismatch(f"{name}: expected a contiguous vector, got stride {tensor.stride(0)}")


class OptimizerCall(NamedTuple):
    """An optimizer's checked arguments as the kernels take them."""

    code: int
    hyper: Any
    m: int
    v: int
    vhat: int
    x: int
    out: int


def optimizer_call(
    size: int,
    device: torch.device,
    x: Tensor,
    out: Tensor,
    *,
    optimizer: str,
    lr: float,
    m: Tensor | None = None,
    v: Tensor | None = None,
    vhat: Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.99),
    eps: float = 1e-8,
    correction: int | None = None,
) -> OptimizerCall:
    """Check an optimizer's arguments, and take their addresses.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch: one is refused.
    """
    moments = OPTIMIZERS.get(optimizer)
    if moments is None:
        raise ConfigError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    vector("x", x, size, device)
    start = end = x.data_ptr()
    if out is not x:
        vector("out", out, size, device)
        end = out.data_ptr()
        if 0 < abs(end - start) < size * 4:
            raise ConfigError("out overlaps x without being x")
    for name, tensor in (("m", m), ("v", v), ("vhat", vhat)):
        if (tensor is not None) != (name in moments):
            raise ConfigError(f"{optimizer} {'needs' if tensor is None else 'has no'} {name}")
        if tensor is not None:
            vector(name, tensor, size, device)
    root_scale = 1.0
    if correction is not None:
        lr = lr / (1.0 - betas[0] ** correction)
        root_scale = 1.0 / math.sqrt(1.0 - betas[1] ** correction)
    hyper = native.Hyper(lr, betas[0], betas[1], eps, root_scale)
    return OptimizerCall(CODES[optimizer], hyper, address(m), address(v), address(vhat), start, end)
