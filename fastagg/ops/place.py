"""Where an op runs: on the CPU, or on a CUDA device and its current stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError, DeviceError, DTypeMismatch
from fastagg.storage.pieces import HOST, Pieces

NUMBERS = 6  # of a verdict
_MOST_PIECES = 200  # csrc/cuda/cuda.h, kMostPieces


class Cuda(NamedTuple):
    """A CUDA device and a stream on it, in the form that kernels take."""

    device: int
    stream: int


def where(on: Cuda, verdict: Tensor | None = None) -> native.cuda.Where:
    """A device, a stream and the verdict that applies, in the form that launches take (csrc/cuda/cuda.h)."""
    return native.cuda.Where(
        device=on.device, stream=on.stream, verdict=0 if verdict is None else verdict.data_ptr()
    )  # fmt: skip


CPU = Cuda(-1, 0)
_EMULATED = Cuda(0, 0)
_cpu = CPU  # where ops on CPU tensors run


def place(device: torch.device) -> Cuda:
    """Where ops on tensors of ``device`` run: :data:`CPU`, or a CUDA device. DeviceError: there are no kernels."""
    if device is HOST or device.type == "cpu":
        if _cpu is not CPU:  # ops of torch, which run at once, come before and after
            native.emulation.settle(native.emulation.current_stream())
        return _cpu
    if device.type == "cuda" and native.cuda_architectures:
        index = torch.cuda.current_device() if device.index is None else device.index
        return Cuda(index, torch.cuda.current_stream(device).cuda_stream)
    raise DeviceError(f"{device}: this build of fastagg has no kernels for it; move the vectors to the CPU")


def on_host_only(what: str, device: torch.device) -> None:
    """Refuse a server's device that has no kernels for something."""
    if place(device) is not CPU:
        raise ConfigError(f"{what}, got device {device}; use device='cpu'")


def on_cuda(device: torch.device) -> bool:
    """Whether ops on tensors of ``device`` run CUDA kernels."""
    return place(device) is not CPU


@contextmanager
def emulated(on: bool = True) -> Iterator[None]:
    """Run ops on CPU tensors through the CUDA kernels, in a build that emulates them (tests/emulation): for tests."""
    global _cpu
    assert native.cuda_emulated, "this build does not emulate CUDA"
    before, _cpu = _cpu, _EMULATED if on else CPU
    try:
        yield
    finally:
        _cpu = before


def on_device(pieces: Pieces) -> Pieces:
    """The pieces in the form that a CUDA kernel takes. If there are too many for its arguments, they are joined first.

    Keep the result until the launch, because the kernel's update holds only addresses.
    """
    return pieces if len(pieces.native) <= _MOST_PIECES else Pieces([pieces.flat(torch.float32)])


def check_verdict(verdict: Tensor, device: torch.device) -> None:
    if place(device) is CPU:
        raise ConfigError(f"verdict: obeyed by CUDA kernels, the update is on {device}")
    if verdict.dtype is not torch.float64 or verdict.shape != (NUMBERS,) or verdict.device != device:
        raise DTypeMismatch(
            f"verdict: expected {NUMBERS} float64 numbers on {device}, got {verdict.dtype} on {verdict.device}"
        )


def run(kernel: Callable[..., None], pieces: Pieces, verdict: Tensor | None, given: dict[str, Any]) -> None:
    if verdict is not None:
        check_verdict(verdict, pieces.device)
    on = place(pieces.device)
    if not pieces.size:  # an empty tensor has no address
        return
    if on is CPU:
        kernel(pieces.native, None, given)
    else:
        there = on_device(pieces)  # until the kernel was launched
        kernel(there.native, where(on, verdict), given)
