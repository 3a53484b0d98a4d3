"""Keeps memory of other libraries alive until a GPU has read it. The host does not wait. Pieces use this module."""

from __future__ import annotations

from collections import deque

import torch

# (event, object): the object is kept alive until the event has happened
_unread: deque[tuple[torch.cuda.Event, object]] = deque()


class Lease:
    """Keeps memory of another library until the device has done all work that was launched while this object lived.
    Otherwise the library could reuse the memory while the device still reads it.

    Args:
        owner: the other library's object that owns the memory.
        device: the device of the work. Only work on the stream that is current when the lease is made counts.
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
    """Release the objects whose events have happened. This takes no lock, because a finalizer may call it anywhere."""
    for _ in range(len(_unread)):
        try:
            event, owner = _unread.popleft()
        except IndexError:  # another thread has taken the last entry
            return
        if not event.query():
            _unread.append((event, owner))
