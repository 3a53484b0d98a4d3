"""Ctrl-C during a run: finish the update at hand, then stop, so that results and checkpoint are whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_ctrl_c() -> Iterator[threading.Event]:
    """Have the first ctrl-C inside the block set the event; a second one interrupts at once, as usual.

    Outside the main thread, where Python delivers no signals, it is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, handler)
    try:
        yield asked
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
