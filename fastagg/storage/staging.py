"""Copies updates from host memory to a GPU, in chunks through a buffer of pinned memory.

While one chunk is transferred, the CPU copies the next chunk into another slot of the buffer. The transfers have a
stream of their own, so the GPU can compute meanwhile. The current stream of the GPU waits for the last chunk.
"""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.storage import memory
from fastagg.storage.pieces import DTYPES, Pieces, as_tensor

_CHUNK = 16 << 20  # bytes of a chunk, and of a slot of the pinned buffer
_SLOTS = 3


def upload(pieces: Pieces, device: torch.device) -> Pieces:
    """Return the update on ``device``: the pieces themselves if they are on it, otherwise one vector.

    If all pieces have one type, the vector has this type. Otherwise the vector is fp32. After this call, the caller may
    write to the memory of pieces in host memory."""
    if pieces.device == device:
        return pieces
    pieces = pieces.plain()
    if pieces.device.type != "cpu" or device.type != "cuda" or pieces.size == 0:
        return pieces.to(device)
    return _stage(device).upload(pieces)


class _Stage:
    """The pinned buffer of one GPU, the stream of its transfers, and an event for each slot's last transfer."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.stream = torch.cuda.Stream(device)
        self.slots = memory.pinned((_SLOTS, _CHUNK), torch.uint8)
        self.events: list[torch.cuda.Event | None] = [None] * _SLOTS
        self.next = 0

    def upload(self, pieces: Pieces) -> Pieces:
        codes = {code for _, _, code in pieces.native}
        if len(codes) > 1:
            pieces = Pieces([as_tensor(owner).to(torch.float32) for owner in pieces.owners])
            codes = {0}
        dtype = DTYPES[codes.pop()]
        step = _CHUNK // dtype.itemsize
        compute = torch.cuda.current_stream(self.device)
        with self.lock:
            # `out` is allocated on the transfers' stream. Memory of the current stream might still be in use there.
            with torch.cuda.stream(self.stream):
                out = memory.empty(pieces.size, self.device, dtype)
            for first in range(0, pieces.size, step):
                self._send(pieces, first, min(step, pieces.size - first), out)
            compute.wait_stream(self.stream)
        out.record_stream(compute)
        return Pieces([out])

    def _send(self, pieces: Pieces, first: int, count: int, out: Tensor) -> None:
        slot, event = self.slots[self.next], self.events[self.next]
        if event is not None:
            event.synchronize()  # wait for the end of this slot's last transfer
        native.copy(
            native.Update(pieces.native), first=first, count=count, item=out.element_size(), out=slot.data_ptr()
        )
        with torch.cuda.stream(self.stream):
            out[first : first + count].copy_(slot[: count * out.element_size()].view(out.dtype), non_blocking=True)
            event = torch.cuda.Event()
            event.record(self.stream)
        self.events[self.next] = event
        self.next = (self.next + 1) % _SLOTS


_stage = cache(_Stage)
