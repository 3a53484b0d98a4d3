"""Allocates the vectors that native code writes to, on Linux in huge pages. When the last view of a vector in host
memory is gone, its memory is kept for later vectors (csrc/memory)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import DeviceError

# The tensors that show the engine's vectors, while they are in use. So a vector is always shown by the same tensor.
_tensors: weakref.WeakValueDictionary[tuple[int, int, int], Tensor] = weakref.WeakValueDictionary()
native.memory.use_torch(
    Tensor, getattr(Tensor, "__dlpack_c_exchange_api__", None), torch.utils.dlpack.from_dlpack, np.ndarray, _tensors
)  # fmt: skip

_HOST = ("cpu", torch.device("cpu"))
_process = os.getpid()


def without_parents_threads() -> None:
    """Let torch use one thread, if this process is a fork of the process that imported this module. A fork does not
    have its parent's threads, for which torch's operations on 32,768 elements or more would wait for ever."""
    if os.getpid() != _process and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def empty(size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a 1-D tensor of ``size`` uninitialised elements on ``device``.

    Unlike ``torch.empty``, the function does not depend on torch's default type and device, which a program may set."""
    without_parents_threads()
    if device in _HOST and dtype is torch.float32:
        made: Tensor = native.memory.vector(size)
        return made
    return empty_bytes(size * dtype.itemsize, device).view(dtype)


def empty_bytes(nbytes: int, device: torch.device | str = "cpu", *, recycle: bool = True) -> Tensor:
    """Return a 1-D uint8 tensor of ``nbytes`` uninitialised bytes on ``device``.

    ``recycle``: whether host memory is kept for reuse when its last view is gone. False: the system gets it back."""
    if torch.device(device).type == "cpu":
        made: Tensor = native.memory.bytes(nbytes, recycle)
        return made
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"{device} is out of memory: {nbytes / 1e9:.2f} GB more were asked for. Use a smaller cache format or "
            f"fewer clients, or free what else is on the device ({str(error).splitlines()[0]})"
        ) from error


def reserve(size: int, count: int) -> None:
    """Allocate memory for ``count`` vectors of ``size`` fp32 elements, which later vectors of this size will reuse."""
    _ = [empty(size) for _ in range(count)]


def zeros(size: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a 1-D tensor of ``size`` zeros on ``device``."""
    return empty(size, device, dtype).zero_()


def pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor in pinned host memory, for copies to and from a CUDA device."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def trim() -> None:
    """Return the host memory that is kept for reuse to the operating system."""
    native.memory.trim()
