"""Checks that ops do before they call a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg._types import Arrays
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.storage.pieces import Pieces

OPTIMIZERS: dict[str, tuple[str, ...]] = native.optimizers  # name -> its moments; csrc/math/optimizers.h
GROUP = native.group  # elements: the unit of slices of a model and of reductions
MOMENT_BLOCK = native.scale_block  # elements that share a unit; csrc/math/moments.h
_SERVER = 2**32 - 1  # a key that separates the rounding of moments from that of clients' rows
_NO_MOMENTS = native.Moments()
_NAMES = ("m", "v", "vhat")

Update = Tensor | np.ndarray | Sequence[Arrays] | Pieces


def address(tensor: Tensor | None) -> int:
    """The address of a tensor's memory; 0 for None."""
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
    """Number of blocks of 8-bit moments for ``size`` parameters. The last block is padded."""
    return -(-size // MOMENT_BLOCK)


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
) -> native.Optimizer:
    """Check an optimizer's arguments and build the struct for the kernels (csrc/plan.h).

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch: an argument is refused.
    """
    moments = OPTIMIZERS.get(optimizer)
    if moments is None:
        raise ConfigError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    vector("x", x, size, device)
    if out is not x:
        vector("out", out, size, device)
        apart("out", out, "x", x)
    blocks, moment_size, moment_dtype = 0, size, torch.float32
    if units is not None:
        blocks = moment_blocks(size)
        moment_size, moment_dtype = blocks * MOMENT_BLOCK, torch.uint8
        _coded(optimizer, units, blocks, device)
    for name, tensor in zip(_NAMES, (m, v, vhat), strict=True):
        if (tensor is not None) != (name in moments):
            raise ConfigError(f"{optimizer} {'needs' if tensor is None else 'has no'} {name}")
        if tensor is not None:
            vector(name, tensor, moment_size, device, moment_dtype)
    if size == 0:  # vectors without elements have no address either
        return native.Optimizer()
    root_scale = 1.0
    if correction is not None:
        lr = lr / (1.0 - betas[0] ** correction)
        root_scale = 1.0 / math.sqrt(1.0 - betas[1] ** correction)
    hyper = _hyper(lr, betas[0], betas[1], eps, root_scale)
    held = _NO_MOMENTS
    if units is not None:
        seed, step = rounding
        held = native.Moments.coded(
            m=address(m), v=address(v), vhat=address(vhat), units=units.data_ptr(), blocks=blocks,
            key=native.RandomKey(seed=seed, step=step, client=_SERVER),
        )  # fmt: skip
    elif moments:
        held = _moments(address(m), address(v), address(vhat))
    return _optimizer(optimizer, hyper, held, x.data_ptr(), out.data_ptr())


# A server uses the same settings and addresses at every step, so its structs are cached. They hold plain values, so a
# struct that outlives its memory does no harm.
@lru_cache(64)
def _hyper(lr: float, beta1: float, beta2: float, eps: float, root_scale: float) -> native.Hyper:
    return native.Hyper(lr=lr, beta1=beta1, beta2=beta2, eps=eps, root_scale=root_scale)


@lru_cache(64)
def _moments(m: int, v: int, vhat: int) -> native.Moments:
    return native.Moments(m=m, v=v, vhat=vhat)


@lru_cache(64)
def _optimizer(kind: str, hyper: native.Hyper, moments: native.Moments, x: int, out: int) -> native.Optimizer:
    return native.Optimizer(kind=kind, hyper=hyper, moments=moments, x=x, x_out=out)


def apart(name: str, a: Tensor, other: str, b: Tensor) -> None:
    """Refuse vectors that overlap partly. A step would read values that it has just written.

    Raises:
        ConfigError: they overlap partly.
    """
    start, end = a.data_ptr(), b.data_ptr()
    if start != end and start < end + b.nbytes and end < start + a.nbytes:
        raise ConfigError(f"{name} overlaps {other} without being {other}")


def apart_from(name: str, out: Tensor, pieces: Pieces, same: bool = True) -> None:
    """Refuse an output that overlaps the update. With ``same`` a piece may be in the output at its own place.

    Raises:
        ConfigError: the output overlaps the update.
    """
    start, end, own = out.data_ptr(), out.data_ptr() + out.nbytes, out.data_ptr()
    for address, size, code in pieces.native:
        overlaps = start < address + size * (4, 2, 2)[code] and address < end
        if overlaps and size and not (same and code == 0 and address == own):
            raise ConfigError(f"{name} overlaps the update")
        own += 4 * size


def update_of(pieces: Pieces, origin: int = 0) -> native.Update:
    """The update in the form that kernels take.

    Raises:
        ConfigError: ``origin`` is not a multiple of 65,536, or out of range.
    """
    if not -(2**62) < origin < 2**62:  # the extension checks the rest
        raise ConfigError(f"origin: expected a multiple of {GROUP} below 2^62, got {origin}")
    if len(pieces.native) == 1:
        return native.Update.one(*pieces.native[0], origin)
    return native.Update(pieces.native, origin=origin)


def _coded(optimizer: str, units: Tensor, blocks: int, device: torch.device) -> None:
    """Check the arguments of 8-bit moments.

    Raises:
        ConfigError, ShapeMismatch, DTypeMismatch: an argument is refused.
    """
    rows = 2 if "v" in OPTIMIZERS[optimizer] else 1
    if not OPTIMIZERS[optimizer]:
        raise ConfigError(f"{optimizer} has no moments")
    if units.dtype is not torch.float32 or units.device != device:
        raise DTypeMismatch(f"units: expected torch.float32 on {device}, got {units.dtype} on {units.device}")
    if tuple(units.shape) != (rows, blocks) or not units.is_contiguous():
        raise ShapeMismatch(f"units: expected a contiguous [{rows}, {blocks}], got {list(units.shape)}")
