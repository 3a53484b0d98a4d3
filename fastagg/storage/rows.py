"""What kernels know of a cache of rows (:class:`fastagg.ClientCache`): where it lies, and in which format."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fastagg._build import native as extension


class Rows(Protocol):
    """``slots`` rows of ``size`` elements, on one device.

    Attributes:
        data, scales: all rows, [slots, bytes of a row] uint8, and their scales, [slots, blocks] fp32.
        seed: of the rounding.
        native: the same as the extension takes it.
    """

    size: int
    slots: int
    format: str
    seed: int
    device: torch.device
    data: Tensor
    scales: Tensor
    native: extension.Rows
