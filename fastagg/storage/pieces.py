"""An update as it arrived: consecutive pieces of the flat vector, read by the kernels where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import DTypeMismatch

# Codes of csrc/plan.h, Dtype.
_TORCH_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_FLOAT32, _STRIDED = torch.float32, torch.strided
_CPU = torch.device("cpu")  # making one takes as long as comparing three
# By type, native byte order alone: asking a type for its name takes longer than reading a small layer.
_NUMPY_CODES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


class Pieces:
    """Consecutive 1-D pieces of a flat vector on one device, none of them copied if it is contiguous.

    Each piece is a torch tensor, a NumPy array or anything with DLPack, of any shape, in fp32, fp16 or bf16;
    a piece that is not contiguous is copied. The pieces together are the flat vector.

    Attributes:
        size: elements of all pieces together.
        device: where they are.

    Raises:
        DTypeMismatch: another element type, or pieces on two devices.
    """

    __slots__ = ("device", "native", "owners", "size")

    def __init__(self, pieces: Iterable[Any]) -> None:
        self.owners: list[Any] = []  # keeps the memory alive
        self.native: list[tuple[int, int, int]] = []  # address, elements, dtype code
        self.size = 0
        self.device = _CPU
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: Any) -> None:
        if isinstance(piece, np.ndarray):
            code = _NUMPY_CODES.get(piece.dtype)
            if code is None and not (piece.dtype.isnative and piece.dtype.name == "bfloat16"):  # from ml_dtypes
                raise DTypeMismatch(f"expected float32, float16 or bfloat16, got a {piece.dtype} array")
            code = 2 if code is None else code
            # A tensor would be refused, or warned about, for a read-only array; an address is not.
            if not piece.flags.c_contiguous:
                piece = np.ascontiguousarray(piece)
            self._append(piece, _address(piece), piece.size, code, _CPU)
            return
        if not isinstance(piece, Tensor):
            piece = as_array(piece)
        code = _TORCH_CODES.get(piece.dtype)
        if code is None or piece.layout is not torch.strided:
            raise DTypeMismatch(f"expected dense float32, float16 or bfloat16, got {piece.dtype} ({piece.layout})")
        if piece.is_meta:
            raise DTypeMismatch("expected numbers, got a tensor on the meta device, which has none")
        # Asked before done: at small d each of these calls costs as much as the kernel.
        if piece.requires_grad:
            piece = piece.detach()
        if piece.is_neg():  # the imaginary part of a conjugate: the numbers with the other sign
            piece = piece.resolve_neg()
        if not piece.is_contiguous():
            piece = piece.contiguous()
        self._append(piece, piece.data_ptr(), piece.numel(), code, piece.device)

    def _append(self, owner: Any, address: int, size: int, code: int, device: torch.device) -> None:
        if self.owners and device != self.device:
            raise DTypeMismatch(f"pieces on two devices: {self.device} and {device}")
        self.device = device
        self.owners.append(owner)
        self.native.append((address, size, code))
        self.size += size

    def flat(self, dtype: torch.dtype) -> Tensor:
        """The whole vector as one new 1-D tensor of ``dtype``, on the pieces' device."""
        if not self.owners:
            return torch.empty(0, dtype=dtype, device=self.device)
        return torch.cat([as_tensor(owner).reshape(-1).to(dtype) for owner in self.owners])

    def to(self, device: torch.device) -> Pieces:
        """The same pieces on ``device``."""
        if device == self.device:
            return self
        return Pieces([as_tensor(owner).to(device) for owner in self.owners])


def _address(array: np.ndarray) -> int:
    # NumPy's own answer takes over twice as long, which is what a message of many small layers is made of.
    if array.flags.writeable and array.size and array.dtype in _NUMPY_CODES:
        return addressof(c_char.from_buffer(array.data))
    return int(array.ctypes.data)


def as_pieces(update: Tensor | np.ndarray | Sequence[Any] | Pieces) -> Pieces:
    """``update`` as pieces: one array, a sequence of arrays, or pieces already."""
    if isinstance(update, Pieces):
        return update
    # What most updates are, without asking further: at small d every question costs as much as the kernel.
    if (
        type(update) is Tensor
        and update.dtype is _FLOAT32
        and update.is_cpu
        and update.layout is _STRIDED
        and update.is_contiguous()
        and not update.requires_grad
        and not update.is_neg()
    ):
        found = Pieces.__new__(Pieces)
        found.owners = [update]
        found.size = size = update.numel()
        found.native = [(update.data_ptr(), size, 0)]
        found.device = _CPU
        return found
    return Pieces(update if isinstance(update, (list, tuple)) else [update])


def as_array(value: Any) -> Any:
    """``value`` if it is a torch or NumPy array, else a tensor that shares its memory through DLPack.

    Raises:
        DTypeMismatch: it is no array.
    """
    if isinstance(value, (Tensor, np.ndarray)):
        return value
    if isinstance(value, np.generic):  # what NumPy's arithmetic makes of 0-dimensional arrays
        return np.asarray(value)
    try:
        return torch.from_dlpack(value)
    except Exception as error:
        raise DTypeMismatch(
            f"expected a torch tensor, a NumPy array or an array with DLPack, got {type(value).__name__}"
        ) from error


def as_tensor(value: Any) -> Tensor:
    """``value`` as a tensor, sharing memory where it can.

    Raises:
        DTypeMismatch: it is no array of numbers.
    """
    array = as_array(value)
    if isinstance(array, Tensor):
        return array
    if array.dtype.name == "bfloat16":  # from ml_dtypes; torch knows the type only by its bits
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    try:
        # A tensor cannot be read-only, have a negative stride or another machine's byte order: copy those.
        plain = array.flags.writeable and array.dtype.isnative and all(s >= 0 for s in array.strides)
        return torch.from_numpy(array if plain else np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise DTypeMismatch(f"expected an array of numbers, got dtype {array.dtype}") from error
