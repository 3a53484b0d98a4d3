"""Where state vectors live: huge pages on Linux, handed back for reuse when the last view of them is gone.

A server that sends each version to some client writes the next version to a fresh vector (csrc/serving/road.cpp).
Taking that vector from the operating system each time would cost a page fault every 4 KiB, as much as the step itself.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import DeviceError

_HUGE_PAGE = 2 << 20
_HOST = ("cpu", torch.device("cpu"))
_FREE_PER_SIZE = 2  # blocks kept for reuse; the rest goes back to the operating system
_free: dict[int, list[mmap.mmap]] = {}
_lock = threading.Lock()
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # the thread that held it, if one did, does not exist in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def empty(size: int, device: torch.device | str = "cpu") -> Tensor:
    """A 1-D fp32 tensor of ``size`` uninitialised elements on ``device``."""
    if size * 4 < _HUGE_PAGE and device in _HOST:  # what a small model asks for at every arrival
        return torch.empty(size)
    return empty_bytes(size * 4, device).view(torch.float32)


def empty_bytes(nbytes: int, device: torch.device | str = "cpu", *, recycle: bool = True) -> Tensor:
    """A 1-D uint8 tensor of ``nbytes`` uninitialised bytes on ``device``.

    Without ``recycle`` its memory goes back to the operating system when the last view is gone.
    """
    device = torch.device(device)
    if device.type != "cpu" or nbytes < _HUGE_PAGE:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{device} is out of memory: {nbytes / 1e9:.2f} GB more were asked for. Use a smaller cache format or "
                f"fewer clients, or free what else is on the device ({str(error).splitlines()[0]})"
            ) from error
    block = _take(nbytes)
    array = np.frombuffer(block, dtype=np.uint8)
    # torch keeps `array` alive for as long as any tensor or view shares its memory.
    if recycle:
        weakref.finalize(array, _give_back, nbytes, block).atexit = False
    start = -array.ctypes.data % _HUGE_PAGE
    # Cut before torch sees it, or saving a vector would save its whole block.
    return torch.from_numpy(array[start : start + nbytes])


def spare(size: int, device: torch.device | str = "cpu") -> Tensor | None:
    """:func:`empty`, if it takes no more memory than there is already; else None."""
    with _lock:
        lies_about = bool(_free.get(size * 4))
    small = torch.device(device).type != "cpu" or size * 4 < _HUGE_PAGE
    return empty(size, device) if lies_about or small else None


def set_aside(size: int, count: int) -> None:
    """Have ``count`` vectors lie about, which then cost memory once they are used: for who wants speed instead."""
    _ = [empty(size) for _ in range(count)]


def zeros(size: int, device: torch.device | str = "cpu") -> Tensor:
    """A 1-D fp32 tensor of ``size`` zeros on ``device``."""
    return empty(size, device).zero_()


def trim() -> None:
    """Hand blocks kept for reuse back to the operating system: for who will not need them soon."""
    with _lock:
        _free.clear()


def _take(nbytes: int) -> mmap.mmap:
    with _lock:
        if blocks := _free.get(nbytes):
            return blocks.pop()
    # Private, since Python's default is memory shared with forked children, which has no huge pages either. With room
    # to start on a huge-page boundary.
    block = mmap.mmap(-1, nbytes + _HUGE_PAGE, **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _give_back(nbytes: int, block: mmap.mmap) -> None:
    # Runs when an array dies, on whichever thread that happens: it must not wait for a lock that thread may hold.
    if not _lock.acquire(blocking=False):
        return
    try:
        blocks = _free.setdefault(nbytes, [])
        if len(blocks) < _FREE_PER_SIZE:
            blocks.append(block)
    finally:
        _lock.release()
