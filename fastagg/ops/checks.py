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
from fastagg.ops.place import on_cuda
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

MOMENT_BLOCK = 256  # elements that share a unit; csrc/math/moments.h
_SERVER = 2**32 - 1  # keys the rounding of moments apart from that of clients' rows

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


def moment_blocks(size: int) -> int:
    """Blocks of moments in 8 bits for ``size`` parameters; the last one is padded."""
    return -(-size // MOMENT_BLOCK)


_NO_KEY = native.RandomKey(0, 0, 0)


class OptimizerCall(NamedTuple):
    """An optimizer's checked arguments as the kernels take them."""

    code: int
    hyper: Any
    m: int
    v: int
    vhat: int
    x: int
    out: int
    units: int = 0
    blocks: int = 0
    random: Any = _NO_KEY


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
    units: Tensor | None = None,
    rounding: tuple[int, int] = (0, 0),
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
    blocks, moment_size, moment_dtype = 0, size, torch.float32
    if units is not None:
        blocks = moment_blocks(size)
        moment_size, moment_dtype = blocks * MOMENT_BLOCK, torch.uint8
        _coded(optimizer, units, blocks, device)
    for name, tensor in (("m", m), ("v", v), ("vhat", vhat)):
        if (tensor is not None) != (name in moments):
            raise ConfigError(f"{optimizer} {'needs' if tensor is None else 'has no'} {name}")
        if tensor is not None:
            vector(name, tensor, moment_size, device, moment_dtype)
    root_scale = 1.0
    if correction is not None:
        lr = lr / (1.0 - betas[0] ** correction)
        root_scale = 1.0 / math.sqrt(1.0 - betas[1] ** correction)
    hyper = native.Hyper(lr, betas[0], betas[1], eps, root_scale)
    found = OptimizerCall(CODES[optimizer], hyper, address(m), address(v), address(vhat), start, end)
    if units is None:
        return found
    return found._replace(units=units.data_ptr(), blocks=blocks, random=native.RandomKey(*rounding, _SERVER))


def _coded(optimizer: str, units: Tensor, blocks: int, device: torch.device) -> None:
    """Check what comes with moments in 8 bits.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch: it is refused.
    """
    if device.type == "cuda" or on_cuda(device):
        raise ConfigError("moments in 8 bits: there is no CUDA kernel; use fp32 moments, or device='cpu'")
    rows = 2 if "v" in OPTIMIZERS[optimizer] else 1
    if not OPTIMIZERS[optimizer]:
        raise ConfigError(f"{optimizer} has no moments")
    if units.dtype is not torch.float32 or units.device != device:
        raise DTypeMismatch(f"units: expected torch.float32 on {device}, got {units.dtype} on {units.device}")
    if tuple(units.shape) != (rows, blocks) or not units.is_contiguous():
        raise ShapeMismatch(f"units: expected a contiguous [{rows}, {blocks}], got {list(units.shape)}")
