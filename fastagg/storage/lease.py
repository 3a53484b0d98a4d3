"""Memory that a device has not read yet. The host does not wait for it."""

from __future__ import annotations

from collections import deque

import torch

# events, and the objects that are kept until the events have happened
_unread: deque[tuple[torch.cuda.Event, object]] = deque()


class Lease:
    """Keeps memory of another library until the device has done all work that was launched while this object lived.
    Otherwise its owner could reuse the memory as soon as nobody holds it.

    Args:
        owner: the object that holds the memory.
        device: the device of the launches, which are on its current stream.
    """

    __slots__ = ("_owner", "_stream")

    def __init__(self, owner: object, device: torch.device) -> None:
        self._owner = owner
        self._stream = torch.cuda.current_stream(device)

    def __del__(self) -> None:
        try:
            event = torch.cuda.Event()
            event.record(self._stream)
        except Exception:  # the interpreter or the device is shutting down
            return
        _unread.append((event, self._owner))
        _sweep()


def _sweep() -> None:
    """Release memory that was read. It takes no lock, because it may run wherever an object is destroyed."""
    for _ in range(len(_unread)):
        try:
            event, owner = _unread.popleft()
        except IndexError:  # another thread does the same
            return
        if not event.query():
            _unread.append((event, owner))
