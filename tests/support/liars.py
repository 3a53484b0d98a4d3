"""Arrays that are not what they claim: freed, fake, nested, or of a class with a false size and address."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

CLAIMED = 300  # elements


class Lying(Tensor):
    """It claims to hold as many numbers as the model, at an address of its own, whatever it really holds."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size([CLAIMED])

    def size(self, *_: Any) -> Any:
        return torch.Size([CLAIMED])

    def numel(self) -> int:
        return CLAIMED

    def data_ptr(self) -> int:
        return 4096

    def is_contiguous(self, *_: Any, **__: Any) -> bool:
        return True

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return torch.Size([CLAIMED])


class LyingArray(np.ndarray):
    """The same in NumPy."""

    shape, size, dtype = (CLAIMED,), CLAIMED, np.dtype(np.float32)  # type: ignore[assignment]

    @property
    def ctypes(self) -> Any:
        return np.zeros(0).ctypes


class Impostor:
    """Not an array, but ``isinstance`` says that it is one of ``kind``."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind


class Foreign:
    """An array of another library: all it has is DLPack. ``read`` is called before its numbers are."""

    def __init__(self, tensor: Tensor, read: Callable[[], object] = lambda: None) -> None:
        self.tensor, self.read = tensor, read

    def __dlpack__(self, **keywords: Any) -> Any:
        self.read()
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


def freed(tensor: Tensor, left: int = 0) -> Tensor:
    """Return ``tensor`` after its memory was reduced to ``left`` bytes."""
    tensor.untyped_storage().resize_(left)
    return tensor


def fake(size: int = CLAIMED) -> Tensor:
    """Return a tensor without numbers that claims to be on the CPU."""
    with FakeTensorMode():
        return torch.zeros(size)


def nested(layout: torch.layout) -> Tensor:
    """Return two tensors in one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it is a prototype
        return torch.nested.nested_tensor([torch.zeros(CLAIMED - 1), torch.zeros(1)], layout=layout)
