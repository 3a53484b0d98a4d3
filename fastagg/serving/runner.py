"""Where a server's kernels run: on the processor, or on a CUDA device. Others are refused (storage/devices.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.ops.place import CPU, place
from fastagg.storage.staging import send


def on_host(device: torch.device) -> bool:
    """Whether kernels on ``device`` are the processor's own."""
    return place(device) is CPU


def runner_for(device: torch.device) -> tuple[Any, There | None]:
    """The native runner, and what it asks Python, if anything."""
    if on_host(device):
        return native.serving.OnCpu(), None
    there = There(device)
    return native.serving.OnCuda(there), there


class There:
    """What the launches of one arrival need, made ready before the first of them (csrc/serving/on_cuda.h).

    Attributes:
        verdict: what they obey (:func:`fastagg.ops.judge`); None for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.verdict: Tensor | None = None
        self._bytes: Tensor | None = None  # torch gives its memory to nobody whose launches come before these

    def __call__(self, numbers: Any) -> tuple[int, int, int, int]:
        on = place(self.device)
        assert on is not None
        self._bytes = None if numbers is None else send(torch.from_numpy(numbers), self.device)
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (self.verdict, self._bytes)]
        return on.device, on.stream, addresses[0], addresses[1]
