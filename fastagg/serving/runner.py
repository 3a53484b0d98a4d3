"""Chooses where a server's kernels run: on the processor or on a CUDA device (storage/devices.py refuses others)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.ops.place import CPU, place
from fastagg.storage.staging import send


def on_host(device: torch.device) -> bool:
    """Return whether kernels on ``device`` run on the processor."""
    return place(device) is CPU


def runner_for(device: torch.device) -> tuple[Any, There | None]:
    """Return the native runner, and the object that it asks for launches on a device, if any."""
    if on_host(device):
        return native.serving.OnCpu(), None
    there = There(device)
    return native.serving.OnCuda(there), there


class There:
    """Prepares what the launches of one arrival need, before the first of them (csrc/serving/on_cuda.h).

    Attributes:
        verdict: the verdict that the launches obey (:func:`fastagg.ops.judge`); None if there is none.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.verdict: Tensor | None = None
        self._bytes: Tensor | None = None  # kept here, so that torch reuses its memory only for launches after these

    def __call__(self, numbers: Any) -> tuple[int, int, int, int]:
        on = place(self.device)
        assert on is not None
        self._bytes = None if numbers is None else send(torch.from_numpy(numbers), self.device)
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (self.verdict, self._bytes)]
        return on.device, on.stream, addresses[0], addresses[1]
