"""Keeps the server of each part of a model, with the current downloads and uploads. Only the service uses these
objects, from its event loop, so they need no lock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from fastagg.serve.connection import Transfer
from fastagg.server.server import Server

Sent = tuple[int, str | None]  # a version and the format in which it is sent
Copy = tuple[int | str, int]  # a client and its task's id. All copies of an update have the same pair.


class ServedPart:
    """The server of a part, and its transfers.

    Attributes:
        nbytes: the most bytes that the memory of one version takes.
        reading: version and format -> the downloads of this version in this format.
        uploads: the transfers of updates that are arriving.
        receiving: the number of updates that are arriving, or are complete and wait for their step.
        steps: complete update -> the event that is set once the update is taken or refused.
        seen: the server's version at the last call of ``Service.look``.
        one: a lock, held by a large update while all of it is in memory.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.nbytes = 4 * server.layout.size
        self.reading: dict[Sent, set[Transfer]] = {}
        self.uploads: set[Transfer] = set()
        self.receiving = 0
        self.steps: dict[Copy, asyncio.Event] = {}
        self.seen = server.version
        self.one = asyncio.Semaphore()

    @property
    def downloads(self) -> int:
        """The number of current downloads."""
        return sum(map(len, self.reading.values()))

    @property
    def incarnation(self) -> int:
        """The incarnation that made the current version."""
        version = self.server.version
        return max((began for began in self.server._engine.incarnations if began[0] <= version), default=(0, 0))[1]

    @contextlib.contextmanager
    def stepping(self, copy: Copy) -> Iterator[None]:
        """A context for the step of a complete update. Other copies of the update wait until the context ends."""
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
