"""What the service knows of each part and of each client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from fastagg.server.server import Server

Sent = tuple[int, str | None]  # a version, in a format


@dataclass
class Client:
    """What is known of a client since the service began: when it was last there, and how many updates it has sent."""

    seen: float = field(default_factory=time.monotonic)
    updates: int = 0


class Served:
    """The server of a part, and what is on its way."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sending: Counter[Sent] = Counter()  # how many downloads there are of each
        self.receiving = 0
        self.seen = server.version
        self.one = asyncio.Semaphore()  # held by a large update while all of it is in memory

    @contextlib.contextmanager
    def counted(self, sent: Sent) -> Iterator[None]:
        self.sending[sent] += 1
        try:
            yield
        finally:
            self.sending[sent] -= 1
            self.sending += Counter()  # without those of which none is left
