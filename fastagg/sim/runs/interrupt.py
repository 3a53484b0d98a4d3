"""Ctrl-C during a run: finish the update at hand, then stop, so that results and checkpoint are whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fastagg._types import Foreign


@contextmanager
def _handled(handler: Foreign) -> Iterator[None]:
    """Have ``handler`` get ctrl-C inside the block; not outside the main thread, where Python delivers no signals."""
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
    """Have the first ctrl-C inside the block set the event; a second one interrupts at once, as usual."""
    asked, previous = threading.Event(), signal.getsignal(signal.SIGINT)

    def handler(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, previous)

    with _handled(handler):
        yield asked


def without_ctrl_c() -> AbstractContextManager[None]:
    """Ignore ctrl-C inside the block, and in processes that are started there for as long as they live."""
    return _handled(signal.SIG_IGN)
