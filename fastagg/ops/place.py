"""Decides where an op runs: on the CPU, or on a CUDA device and its current stream. Ops and servers use this module."""

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
    """A CUDA device's number and a stream's address. :data:`CPU`, with device -1, stands for the CPU."""

    device: int
    stream: int


def where(on: Cuda) -> native.cuda.Where:
    """Return a device and a stream in the form that kernels' launches take (csrc/cuda/cuda.h)."""
    return native.cuda.Where(device=on.device, stream=on.stream)


CPU = Cuda(-1, 0)
_EMULATED = Cuda(0, 0)
_cpu = CPU  # where ops on CPU tensors run: CPU, or _EMULATED inside `emulated`


def place(device: torch.device) -> Cuda:
    """Return where ops on tensors of ``device`` run: :data:`CPU`, or a CUDA device and its current stream. DeviceError:
    this build has no kernels for the device."""
    if device is HOST or device.type == "cpu":
        if _cpu is not CPU:  # torch's own ops on these tensors do not wait for emulated ops, so wait here
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
    """Return pieces that fit into a CUDA kernel's arguments. If there are too many, they are joined to one fp32 vector.

    Keep the result until the launch, because the kernel's arguments have only the pieces' addresses."""
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
