"""What a device has not said yet, and what it has not read yet: both without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor


class Later:
    """A few numbers of a device's, on their way to the host.

    Whoever reads them, on whatever stream, waits for the launch that makes them and for nothing that came after it.

    Args:
        found: what the current stream computes; its memory is not needed any more.
    """

    def __init__(self, found: Tensor) -> None:
        self._event = None
        self._host = found
        if found.is_cuda:
            self._host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._host.copy_(found, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(found.device))

    def tolist(self) -> list[float]:
        """The numbers; the first call waits for them."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


_unread: deque[tuple[Any, Any]] = deque()  # events, and what lives until they have come


class Lease:
    """Memory of another library's, which its owner may reuse as soon as nobody holds it: held until the device has done
    what was launched while this object lived.

    Args:
        owner: what holds the memory.
        device: the launches' device; they are on the stream that is current now.
    """

    __slots__ = ("_owner", "_stream")

    def __init__(self, owner: Any, device: torch.device) -> None:
        self._owner = owner
        self._stream = torch.cuda.current_stream(device)

    def __del__(self) -> None:
        try:
            event = torch.cuda.Event()
            event.record(self._stream)
        except Exception:  # the interpreter, or the device, is going
            return
        _unread.append((event, self._owner))
        _sweep()


def _sweep() -> None:
    """Let go of what has been read. Takes no lock: it may run wherever an object dies."""
    for _ in range(len(_unread)):
        try:
            event, owner = _unread.popleft()
        except IndexError:  # another thread sweeps, too
            return
        if not event.query():
            _unread.append((event, owner))
