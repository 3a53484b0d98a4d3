"""Checks the arguments of kernels, and converts them to the form that kernels take (csrc/plan.h).

If a check fails, it raises an error, and nothing is written. fastagg/ops and other modules that call kernels use this.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg._types import Arrays
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.storage.pieces import HOST, Pieces

# optimizer -> the names of its moments (csrc/math/optimizers.h)
OPTIMIZERS: dict[str, tuple[str, ...]] = native.optimizers
MOMENT_BLOCK = native.scale_block  # the number of 8-bit moments that share a scale (csrc/math/moments.h)
_look = native.memory.look_1d
_CODES = {torch.float32: 0, torch.int64: 3, torch.float64: 4, torch.uint8: 5}  # Element in csrc/bindings/arrays.h

Update = Tensor | np.ndarray | Sequence[Arrays] | Pieces


def address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's memory, or 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def vector(name: str, tensor: Tensor, size: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Check that a state vector is 1-D, contiguous, of ``size`` elements and on ``device``. Return its address."""
    # In the usual case one call checks everything. For small vectors each further check takes as long as the kernel.
    if device is HOST and (place := _look(tensor, size, _CODES[dtype])) is not None:
        return place
    if not isinstance(tensor, Tensor):
        raise DTypeMismatch(f"{name}: expected a torch tensor, got {type(tensor).__name__}")
    if tensor.dtype is not dtype:
        raise DTypeMismatch(f"{name}: expected {dtype}, got {tensor.dtype}")
    if tensor.device != device:
        raise DTypeMismatch(f"{name} is on {tensor.device}, the update on {device}")
    if tensor.dim() != 1 or tensor.numel() != size:
        raise ShapeMismatch(f"{name}: expected shape [{size}], got {list(tensor.shape)}")
    if not tensor.is_contiguous():
        raise ShapeMismatch(f"{name}: expected a contiguous vector, got stride {tensor.stride(0)}")
    if tensor.untyped_storage().nbytes() < tensor.element_size() * (tensor.storage_offset() + size) and size:
        raise ConfigError(f"{name}: its memory was freed")
    return tensor.data_ptr()


def check(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a tensor of another type, device or shape, or one that is not contiguous."""
    if tensor.dtype is not dtype or tensor.device != device:
        raise DTypeMismatch(f"{name}: expected {dtype} on {device}, got {tensor.dtype} on {tensor.device}")
    if tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise ShapeMismatch(f"{name}: expected a contiguous {list(shape)}, got {list(tensor.shape)}")


def moment_blocks(size: int) -> int:
    """Return the number of blocks of 8-bit moments for ``size`` parameters. The last block is padded."""
    return -(-size // MOMENT_BLOCK)


def apart(name: str, a: Tensor, other: str, b: Tensor) -> None:
    """Refuse two vectors that overlap partly, because a kernel would read elements that it has just written. ``name``
    and ``other``: the vectors' names in the message."""
    start, end = a.data_ptr(), b.data_ptr()
    if start != end and start < end + b.nbytes and end < start + a.nbytes:
        raise ConfigError(f"{name} overlaps {other} without being {other}")


def apart_from(name: str, out: int, pieces: Pieces, same: bool = True) -> None:
    """Refuse an output that overlaps the update. ``name``: the output's name in the message.

    Args:
        out: the output's address. The output has as many elements as the update, of 4 bytes each.
        same: whether an fp32 piece may lie in the output's memory, if it lies exactly at its place in the vector.
    """
    end, own = out + 4 * pieces.size, out
    for start, size, code in pieces.native:
        overlaps = code <= 2 and out < start + size * (4, 2, 2)[code] and start < end
        if overlaps and size and not (same and code == 0 and start == own):
            raise ConfigError(f"{name} overlaps the update")
        own += 4 * size


def update_of(pieces: Pieces) -> native.Update:
    if len(pieces.native) == 1:
        return native.Update.one(*pieces.native[0])
    return native.Update(pieces.native)


def pair(name: str, value: Any) -> tuple[Any, Any]:
    try:
        first, second = value
    except (TypeError, ValueError):
        raise ConfigError(f"{name}: expected two numbers, got {value!r:.100}") from None
    return first, second


def key(name: str, value: int, bits: int = 64) -> int:
    """Return ``value`` if it is an integer in 0..2**bits-1. Otherwise raise ConfigError."""
    number = index(value)
    if not 0 <= number < 1 << bits:
        raise ConfigError(f"{name}: expected 0 to {(1 << bits) - 1}, got {value}")
    return number


def optimizer_of(
    size: int,
    device: torch.device,
    x: Tensor,
    out: Tensor | None,
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
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    period: int = 1,
) -> dict[str, Any]:
    """Check an optimizer's arguments, and return them as the keywords of the kernel that steps ``x``, [``size``]. This
    function's keywords are those of :func:`fastagg.ops.step_`."""
    moments = OPTIMIZERS.get(optimizer)
    if moments is None:
        raise ConfigError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    at = vector("x", x, size, device)
    beta1, beta2 = pair("betas", betas)
    plan: dict[str, Any] = {
        "optimizer": optimizer, "x": at, "out": at, "lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps,
        "eps_root": eps_root, "weight_decay": weight_decay, "decoupled": decoupled_weight_decay,
        "period": period,
    }  # fmt: skip
    if index(period) < 1:
        raise ConfigError(f"period: expected a whole number >= 1, got {period}")
    if out is not None and out is not x:
        plan["out"] = vector("out", out, size, device)
        apart("out", out, "x", x)
    length, dtype = size, torch.float32
    if units is not None:
        blocks, dtype = moment_blocks(size), torch.uint8
        length = blocks * MOMENT_BLOCK
        _check_units(optimizer, units, blocks, device)
        seed, step = pair("rounding", rounding)
        plan |= {"units": units.data_ptr(), "moment_seed": key("rounding", seed), "moment_step": key("rounding", step)}
    for name, moment in (("m", m), ("v", v), ("vhat", vhat)):
        if (moment is not None) != (name in moments):
            raise ConfigError(f"{optimizer} {'needs' if moment is None else 'has no'} {name}")
        if moment is not None:
            plan[name] = vector(name, moment, length, device, dtype)
    if correction is not None:
        if not (correction > 0 and beta1**correction < 1 and beta2**correction < 1):
            raise ConfigError(f"correction: expected a round from 1 on and betas below 1, got {correction}")
        plan["round"] = correction
    return plan


def _check_units(optimizer: str, units: Tensor, blocks: int, device: torch.device) -> None:
    rows = 2 if "v" in OPTIMIZERS[optimizer] else 1
    if not OPTIMIZERS[optimizer] or optimizer in native.plain_optimizers:
        raise ConfigError(f"{optimizer} has no moments" + (" in 8 bits" if OPTIMIZERS[optimizer] else ""))
    check("units", units, (rows, blocks), torch.float32, device)
