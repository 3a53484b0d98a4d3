"""Ctrl-C during a run: finish the update at hand, then stop, so that results and checkpoint are whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """True once the user has asked to stop."""

    def __init__(self) -> None:
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def ask(self) -> None:
        self._asked = True


@contextmanager
def on_ctrl_c() -> Iterator[StopRequest]:
    """Turn the first ctrl-C inside the block into a StopRequest; a second one interrupts at once, as usual.

    Outside the main thread, where Python delivers no signals, the request simply stays false.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: FrameType | None) -> None:
        request.ask()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, handler)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def without_ctrl_c() -> Iterator[None]:
    """Ignore ctrl-C inside the block, and in processes that are started there for as long as they live."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
