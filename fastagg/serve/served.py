"""The server of each part, with what is on its way to and from it. Only the service uses it, in its event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from fastagg.serve.connection import Transfer
from fastagg.server.server import Server

Sent = tuple[int, str | None]  # a version, in a format
Copy = tuple[int | str, int]  # a client, and its task


class ServedPart:
    """The server of a part, and what is on its way.

    Attributes:
        nbytes: of one version, at most.
        reading: who is sent which version.
        uploads: the updates that come. One that is complete and waits for its step counts in ``receiving`` alone.
        steps: of clients and tasks: what is set when the update, which is complete, is taken or refused.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.nbytes = 4 * server.layout.size
        self.reading: dict[Sent, set[Transfer]] = {}
        self.uploads: set[Transfer] = set()
        self.receiving = 0
        self.steps: dict[Copy, asyncio.Event] = {}
        self.seen = server.version
        self.one = asyncio.Semaphore()  # held by a large update while all of it is in memory

    @property
    def downloads(self) -> int:
        """How many are sent a version."""
        return sum(map(len, self.reading.values()))

    @property
    def incarnation(self) -> int:
        """The one that made the present version."""
        version = self.server.version
        return max((began for began in self.server._engine.incarnations if began[0] <= version), default=(0, 0))[1]

    @contextlib.contextmanager
    def stepping(self, copy: Copy) -> Iterator[None]:
        """An update is complete. Until it is taken or refused, other copies of it wait."""
        event = self.steps[copy] = asyncio.Event()
        try:
            yield
        finally:
            event.set()
            if self.steps.get(copy) is event:
                del self.steps[copy]

    @contextlib.contextmanager
    def counted(self, sent: Sent, transfer: Transfer) -> Iterator[None]:
        readers = self.reading.setdefault(sent, set())
        readers.add(transfer)
        try:
            yield
        finally:
            readers.discard(transfer)
            if not readers and self.reading.get(sent) is readers:
                del self.reading[sent]
