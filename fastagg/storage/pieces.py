"""Pieces: an update as consecutive pieces of the flat vector, which kernels read in place. A piece is an array of
torch, NumPy or another library. Arrays that are not safe to read are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ctypes import addressof, c_char
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from fastagg._build import native
from fastagg._types import Arrays
from fastagg.errors import DTypeMismatch
from fastagg.storage.lease import Lease

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # the type of each code in csrc/plan.h
# Type of an update -> the type's code in the log. uint8 stands for the bytes of an encoded update.
STREAMED = {dtype: code for code, dtype in enumerate(DTYPES)} | {torch.uint8: 7}
_TORCH_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_WHOLE = len(DTYPES)  # the code of int64. Only tensors with smaller codes may be pieces.
_ENCODED = 8  # the code of an encoded update, which is a single piece
# Returns the address, element count and type code of a contiguous CPU tensor of torch's own class. Otherwise None.
_look = native.memory.look
HOST = torch.device("cpu")  # a constant, because making the object takes as long as three comparisons
# NumPy type in native byte order -> code. A lookup by the type's name would take longer than reading a small layer.
_NUMPY_CODES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}


class Pieces:
    """Consecutive 1-D pieces of a flat vector on one device.

    Each piece is a torch tensor, a NumPy array or anything with DLPack, of any shape, in fp32, fp16 or bf16. The only
    piece may instead be an encoded update. A piece is copied only if it is not contiguous or, in torch, a negated view.
    The size and address of an array of a subclass are those that the base class of torch or NumPy reports.

    Attributes:
        size: the number of elements of all pieces together.
        device: the pieces' device.
    """

    __slots__ = ("device", "leases", "native", "owners", "size")

    def __init__(self, pieces: Iterable[Arrays]) -> None:
        self.owners: list[Arrays] = []  # the pieces' objects, which keep the memory alive
        self.native: list[tuple[int, int, int]] = []  # (address, elements, dtype code) of each piece
        self.size = 0
        self.device = HOST
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: Arrays) -> None:
        if type(piece) is Tensor and (memory := _plain(piece)) is not None and self.device is HOST:
            self.owners.append(piece)
            self.native.append(memory)
            self.size += memory[1]
            return
        if isinstance(piece, native.encoding.Encoded):
            self._append(piece, piece.address, piece.size, _ENCODED, HOST)
            return
        piece = as_array(piece)
        if isinstance(piece, np.ndarray):
            code = _NUMPY_CODES.get(piece.dtype)
            if code is None and not (piece.dtype.isnative and piece.dtype.name == "bfloat16"):  # the type in ml_dtypes
                raise DTypeMismatch(
                    f"expected float32, float16 or bfloat16, got a {piece.dtype} array"
                    + ('; convert it with .astype("float32")' if piece.dtype.kind in "fiub" else "")
                )
            code = 2 if code is None else code
            # No tensor is made of the array, because torch warns about read-only arrays. The address is enough.
            if not piece.flags.c_contiguous:
                piece = np.ascontiguousarray(piece)
            self._append(piece, _address(piece), piece.size, code, HOST)
            return
        code = _TORCH_CODES.get(piece.dtype)
        if code is None or piece.layout is not torch.strided:
            do = "; convert it with .to_dense()" if piece.layout is not torch.strided else "; convert it with .float()"
            raise DTypeMismatch(
                f"expected dense float32, float16 or bfloat16, got {piece.dtype} ({piece.layout})"
                + ("" if piece.is_complex() else do)
            )
        if piece.is_meta:
            raise DTypeMismatch("expected numbers, got a tensor on the meta device, which has none")
        _refuse_freed(piece)
        # Each of the calls below is made only if it is needed. For a small piece it takes as long as the kernel.
        if piece.is_cuda:
            self._hold(piece)
        if piece.requires_grad:
            piece = piece.detach()
        if piece.is_neg():  # for example the imaginary part of a conjugate: the memory has the opposite sign
            piece = piece.resolve_neg()
        if not piece.is_contiguous():
            piece = piece.contiguous()
        self._append(piece, piece.data_ptr(), piece.numel(), code, piece.device)

    def _hold(self, piece: Tensor) -> None:
        # The tensor may have been made on another stream. Without this call, torch's allocator could reuse the memory
        # while the current stream reads the tensor.
        piece.record_stream(torch.cuda.current_stream(piece.device))
        if getattr(piece, "_of_another_library", False):  # torch's allocator does not know this memory
            leases = getattr(self, "leases", [])
            self.leases = [*leases, Lease(piece, piece.device)]

    def _append(self, owner: object, address: int, size: int, code: int, device: torch.device) -> None:
        if self.owners and device != self.device:
            raise DTypeMismatch(f"pieces on two devices: {self.device} and {device}")
        self.device = device
        self.owners.append(owner)
        self.native.append((address, size, code))
        self.size += size

    def flat(self, dtype: torch.dtype) -> Tensor:
        """Return the whole vector as a new 1-D tensor of ``dtype``, on the pieces' device."""
        if not self.owners:
            return torch.empty(0, dtype=dtype, device=self.device)
        return torch.cat([as_tensor(owner).reshape(-1).to(dtype) for owner in self.plain().owners])

    def to(self, device: torch.device) -> Pieces:
        """Return the pieces on ``device``. An encoded update that is moved is decoded first."""
        if device == self.device:
            return self
        return Pieces([as_tensor(owner).to(device) for owner in self.plain().owners])

    @property
    def is_encoded(self) -> bool:
        """Whether the only piece is an encoded update."""
        return len(self.native) == 1 and self.native[0][2] == _ENCODED

    def plain(self) -> Pieces:
        """Return the pieces as arrays. An encoded update is decoded to fp32. Other pieces are returned unchanged."""
        if not self.is_encoded:
            return self
        out = torch.empty(self.size, dtype=torch.float32, device="cpu")
        self.owners[0].decode(out.data_ptr())
        return Pieces([out])


def _address(array: np.ndarray) -> int:
    # `array.ctypes` takes more than twice as long as `from_buffer`, and a model can have many small layers.
    if array.flags.writeable and array.size and array.dtype in _NUMPY_CODES:
        return addressof(c_char.from_buffer(array.data))
    return int(array.ctypes.data)


def as_pieces(update: Tensor | np.ndarray | Sequence[Arrays] | Pieces) -> Pieces:
    """Return ``update`` as pieces. ``update`` is one array, a list or tuple of arrays, or pieces already."""
    if type(update) is Tensor and (native := _plain(update)) is not None:
        return _of_tensor(update, native)
    if isinstance(update, Pieces):
        return update
    return Pieces(update if isinstance(update, (list, tuple)) else [update])


def _plain(tensor: Tensor) -> tuple[int, int, int] | None:
    """Return the address, element count and type code of a contiguous tensor of torch's own class on the CPU, if it is
    fp32, fp16 or bf16 and needs no gradient. Otherwise None."""
    memory = _look(tensor)
    return None if memory is None or memory[2] >= _WHOLE or tensor.requires_grad else memory


def is_plain_fp32(tensor: Tensor) -> bool:
    """Return whether a tensor is of torch's own class, contiguous, on the CPU and in fp32."""
    memory = _look(tensor)
    return memory is not None and memory[2] == 0


def plain_pieces(tensor: Tensor, size: int) -> Pieces | None:
    """Return a tensor as pieces, if it is of torch's own class, and a contiguous vector of ``size`` fp32 elements on
    the CPU. Otherwise None. Most updates have this form, so this function makes as few checks as possible."""
    if tensor.dim() != 1:
        return None
    memory = _plain(tensor)
    return _of_tensor(tensor, memory) if memory is not None and memory[1:] == (size, 0) else None


def _of_tensor(tensor: Tensor, memory: tuple[int, int, int]) -> Pieces:
    pieces = Pieces.__new__(Pieces)
    pieces.owners, pieces.native, pieces.size, pieces.device = [tensor], [memory], memory[1], HOST
    return pieces


def stored_pieces(stored: Sequence[Tensor]) -> Pieces:
    """Return an update from a checkpoint or an upload as pieces. ``stored``: the update's arrays, or one uint8 tensor
    with the bytes of an encoded update."""
    if len(stored) == 1 and stored[0].dtype is torch.uint8:
        return Pieces([native.encoding.Encoded(stored[0].numpy())])
    return Pieces(stored)


def as_array(value: Arrays) -> Tensor | np.ndarray:
    """Return ``value`` as an array of exactly torch's or NumPy's class, with the same memory. Arrays of other libraries
    become tensors through DLPack. DTypeMismatch: ``value`` is no such array."""
    kind = type(value)
    if kind is np.ndarray or (kind is Tensor and not value.is_nested):
        return value
    if isinstance(value, Tensor):
        return _plain_tensor(value)
    if isinstance(value, np.ndarray):
        return _plain_array(value)
    if isinstance(value, np.generic):  # NumPy's arithmetic on 0-dimensional arrays returns such scalars
        return np.asarray(value)
    try:
        tensor = torch.from_dlpack(checked(value))
        if tensor.is_cuda:
            tensor._of_another_library = True  # type: ignore[attr-defined]
        return tensor
    except DTypeMismatch:
        raise
    except Exception as error:
        do = {list: "; convert it with torch.tensor", float: "; convert it with torch.tensor"}.get(kind, "")
        do = "; give the mapping in it alone" if isinstance(value, Mapping) else do
        raise DTypeMismatch(
            f"expected a torch tensor, a NumPy array or an array with DLPack, got {kind.__name__}{do}"
        ) from error


class _DlpackArray:
    """A wrapper of another library's array. It checks the array's strides before torch reads them, because a negative
    stride in DLPack would end the process."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        return checked(self.value.__dlpack__(**how))


def checked(value: Any) -> Any:
    """Return an object to pass to torch.from_dlpack or torch.as_tensor in place of ``value``, a user's array or DLPack
    capsule. If the array has a negative stride, DTypeMismatch is raised here, or when torch reads the object."""
    if hasattr(value, "__dlpack__") and not isinstance(value, (Tensor, np.ndarray)):
        return _DlpackArray(value)
    if not native.memory.is_fit_for_torch(value):
        raise DTypeMismatch("expected an array with positive strides, got one with DLPack and others; give a copy")
    return value


def _plain_tensor(value: Tensor) -> Tensor:
    kind = type(value)
    if kind is Tensor or kind is Parameter:
        if value.is_nested:  # a nested tensor has no shape
            raise DTypeMismatch("expected one dense array, got a nested tensor")
        return value
    # A class with a `__torch_dispatch__` of its own (fake, distributed, masked, nested) is a wrapper. Its memory does
    # not hold the numbers.
    if getattr(kind, "__torch_dispatch__", None) is Tensor.__torch_dispatch__:
        try:
            with torch._C.DisableTorchFunctionSubclass():  # the class may override as_subclass, too
                return _plain_tensor(Tensor.as_subclass(value, Tensor))
        except RuntimeError:
            pass
    raise DTypeMismatch(f"expected a plain tensor with its numbers in memory, got {kind.__name__}")


def _plain_array(value: np.ndarray) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray):
        raise DTypeMismatch("expected an array of numbers, got a masked array: fill in what is masked (filled())")
    try:
        return np.ndarray.view(value, np.ndarray)
    except TypeError:  # the object claims to be an array by its `__class__`, but is not one
        raise DTypeMismatch(f"expected an array of numbers, got {type(value).__name__}") from None


def _refuse_freed(tensor: Tensor) -> None:
    """Refuse a dense tensor whose storage is too small, for example because of ``untyped_storage().resize_(0)``."""
    try:
        nbytes = tensor.untyped_storage().nbytes()
    except RuntimeError as error:  # a transform such as torch.vmap is running
        raise DTypeMismatch(f"expected a tensor with its numbers in memory: {error}") from None
    size = tensor.numel()
    if not size:
        return
    if not tensor.is_contiguous():
        size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if nbytes < (tensor.storage_offset() + size) * tensor.element_size():
        raise DTypeMismatch(
            f"expected {tensor.numel()} numbers, got a tensor whose memory was freed ({nbytes} bytes left)"
        )


def as_tensor(value: object) -> Tensor:
    """Return ``value`` as a tensor. The tensor shares the array's memory if torch can show this memory."""
    array = as_array(value)
    if isinstance(array, Tensor):
        if array.layout is torch.strided:
            _refuse_freed(array)
        return array
    if array.dtype.name == "bfloat16":  # torch cannot read the type of ml_dtypes, but can read the bits as uint16
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    try:
        # A tensor cannot be read-only, or have a negative stride or another byte order. Such arrays are copied.
        plain = array.flags.writeable and array.dtype.isnative and all(s >= 0 for s in array.strides)
        return torch.from_numpy(array if plain else np.array(array, dtype=array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise DTypeMismatch(f"expected an array of numbers, got dtype {array.dtype}") from error
