"""Decides where an op runs: on the CPU, or on a CUDA device and its current stream. Ops and the server call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fastagg._build import native
from fastagg.errors import DeviceError
from fastagg.storage.pieces import HOST, Pieces

_MOST_PIECES = 200  # the limit in csrc/cuda/cuda.h, kMostPieces


class Cuda(NamedTuple):
    """A CUDA device and a stream on this device, as kernels take them."""

    device: int
    stream: int


def where(on: Cuda) -> native.cuda.Where:
    """Return a device and a stream as launches take them (csrc/cuda/cuda.h)."""
    return native.cuda.Where(device=on.device, stream=on.stream)


CPU = Cuda(-1, 0)
_EMULATED = Cuda(0, 0)
_cpu = CPU  # where ops on CPU tensors run


def place(device: torch.device) -> Cuda:
    """Return where ops on tensors of ``device`` run: :data:`CPU`, or a CUDA device and its current stream. DeviceError:
    this build has no kernels for the device."""
    if device is HOST or device.type == "cpu":
        if _cpu is not CPU:  # torch's own ops on these tensors run at once, so wait for all emulated ops first
            native.emulation.settle(native.emulation.current_stream())
        return _cpu
    if device.type == "cuda" and native.cuda_architectures:
        index = torch.cuda.current_device() if device.index is None else device.index
        return Cuda(index, torch.cuda.current_stream(device).cuda_stream)
    raise DeviceError(f"{device}: this build of fastagg has no kernels for it; move the vectors to the CPU")


def on_cuda(device: torch.device) -> bool:
    """Return whether ops on tensors of ``device`` run CUDA kernels."""
    return place(device) is not CPU


@contextmanager
def emulated(on: bool = True) -> Iterator[None]:
    """Run ops on CPU tensors through the emulated CUDA kernels. Only for tests, in a build with tests/emulation."""
    global _cpu
    assert native.cuda_emulated, "this build does not emulate CUDA"
    before, _cpu = _cpu, _EMULATED if on else CPU
    try:
        yield
    finally:
        _cpu = before


def on_device(pieces: Pieces) -> Pieces:
    """Return the pieces in a form that a CUDA kernel takes. If there are too many pieces for its arguments, join them.

    Keep the result until the launch, because the kernel's arguments have only addresses.
    """
    return pieces if len(pieces.native) <= _MOST_PIECES else Pieces([pieces.flat(torch.float32)])


def run(kernel: Callable[..., None], pieces: Pieces, settings: dict[str, Any]) -> None:
    on = place(pieces.device)
    if not pieces.size:  # an empty tensor has no address
        return
    if on is CPU:
        kernel(pieces.native, None, settings)
    else:
        there = on_device(pieces)  # kept alive until the launch
        kernel(there.native, where(on), settings)
