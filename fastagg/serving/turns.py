"""Whose turn it is: a lock that only so many may wait for, and the lock of a server that is not this process's."""

from __future__ import annotations

import threading
from typing import Any

from fastagg.errors import Busy, ConfigError


class Turn:
    """A lock for which no more than ``most`` threads may wait."""

    def __init__(self, lock: Any, most: int) -> None:
        self._lock, self._most = lock, most
        self._waiting, self._count = 0, threading.Lock()

    def __enter__(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        with self._count:
            if self._waiting >= self._most:
                raise Busy(f"{self._waiting} answers are waiting already (max_waiting): send this one later")
            self._waiting += 1
        try:
            self._lock.acquire()
        finally:
            with self._count:
                self._waiting -= 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Elsewhere:
    """The lock of a server whose process forked, in the child."""

    def __enter__(self) -> None:
        raise ConfigError("this server belongs to the process that made it: save it there and fastagg.load it here")

    def __exit__(self, *_: object) -> None:
        pass
