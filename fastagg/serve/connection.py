"""Connections and downloads that end, whatever the other side does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastagg._types import Foreign, Plain

PIECE = 1 << 16  # bytes of a model that wait for one client


class Download(StreamingResponse):
    """Sends memory in pieces, the next one when the client has taken the last one.

    Args:
        body: what is sent. Nothing of it is copied before its turn.
        seconds: how long it may take; then the connection is closed.
        counted: is left when the download has ended.
    """

    def __init__(
        self, body: Iterable[memoryview], headers: dict[str, str], seconds: float, counted: contextlib.ExitStack
    ) -> None:
        held = list(body)
        pieces = (view[at : at + PIECE] for view in held for at in range(0, len(view), PIECE))
        length = {"Content-Length": str(sum(map(len, held)))}
        kind = {"Content-Type": "application/octet-stream"}
        super().__init__(_each(pieces), headers={**kind, **headers, **length})
        self.seconds, self.counted = seconds, counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.counted, contextlib.suppress(TimeoutError):  # uvicorn closes what ends before its length
            async with asyncio.timeout(self.seconds):
                await super().__call__(scope, receive, send)


async def _each(pieces: Iterable[memoryview]) -> AsyncIterator[memoryview]:
    for piece in pieces:  # not StreamingResponse's own way, which is a thread for every piece
        yield piece


class Refusal(JSONResponse):
    """An answer that may come before all of the request has. The rest is read and forgotten, for some seconds: whoever
    still sends to a closed connection loses the answer."""

    def __init__(
        self, request: Request, says: Plain, status: int, headers: dict[str, str] | None, seconds: float
    ) -> None:
        super().__init__(says, status, headers)
        self.request, self.seconds = request, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def begin(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await super().__call__(scope, receive, begin)
        with contextlib.suppress(ClientDisconnect, TimeoutError, RuntimeError):  # the last one: all of it was read
            async with asyncio.timeout(self.seconds):
                async for _ in self.request.stream():
                    pass
        await send({"type": "http.response.body"})


class Connection(H11Protocol):
    """A connection of uvicorn that is cut when nothing moves on it. uvicorn itself waits for ever, in four places:
    for the head of a request, for the body of one that it has refused, for a client that takes nothing, and for the
    last bytes before it closes."""

    seconds = 30.0  # after one to two times as many

    def connection_made(self, transport: Foreign) -> None:
        super().connection_made(transport)
        self.moves = 0
        self.seen: tuple[object, ...] | None = None
        self.look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.moves += self.conn.their_state is not h11.IDLE  # a head counts when it is complete

    def resume_writing(self) -> None:
        super().resume_writing()
        self.moves += 1

    def look(self) -> None:
        """Cut the connection if there is nothing new since the last look, and the service is not at work either."""
        cycle, waiting = self.cycle, self.transport.get_write_buffer_size()
        answered = cycle is None or cycle.response_complete
        ended = self.transport.is_closing() or (answered and cycle is not None and cycle.more_body)
        now = (cycle, ended) if ended else (cycle, ended, self.moves, waiting)
        at_work = not answered and not waiting and (self.flow.read_paused or not cycle.more_body)
        if now == self.seen and not at_work:
            self.transport.abort()
        self.seen = now
        self.timer = self.loop.call_later(self.seconds, self.look)
