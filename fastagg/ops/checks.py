"""Checks that ops do before they call a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg._types import Arrays
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.storage.pieces import Pieces

OPTIMIZERS: dict[str, tuple[str, ...]] = native.optimizers  # name -> its moments; csrc/math/optimizers.h
MOMENT_BLOCK = native.scale_block  # elements that share a unit; csrc/math/moments.h

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


def update_of(pieces: Pieces) -> native.Update:
    """The update in the form that kernels take."""
    if len(pieces.native) == 1:
        return native.Update.one(*pieces.native[0])
    return native.Update(pieces.native)


def coded(optimizer: str, units: Tensor, blocks: int, device: torch.device) -> None:
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
