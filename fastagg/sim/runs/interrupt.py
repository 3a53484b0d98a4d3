"""Handles ctrl-C. A run finishes its current update before it stops, so its results and checkpoint are complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fastagg._types import Foreign


@contextmanager
def _handled(handler: Foreign) -> Iterator[None]:
    """Let ``handler`` handle ctrl-C in a ``with`` block. In another thread than Python's main thread, the block has no
    effect, because only the main thread may set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def on_ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that the first ctrl-C in a ``with`` block sets. A second ctrl-C has its usual effect."""
    asked, previous = threading.Event(), signal.getsignal(signal.SIGINT)

    def handler(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, previous)

    with _handled(handler):
        yield asked


def without_ctrl_c() -> AbstractContextManager[None]:
    """Ignore ctrl-C in a ``with`` block. Processes that start in the block ignore ctrl-C until they end."""
    return _handled(signal.SIG_IGN)
