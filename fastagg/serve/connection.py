"""Limits connections and requests, and ends slow transfers and connections on which no bytes move.

These rules hold for all routes and clients, with and without a token:

1. :class:`Listener` limits the connections, including TLS handshakes. At the limit, a new connection replaces the idle
   connection that has been silent longest. So silent connections never keep others out.
2. A connection is cut if no bytes move on it while its client should send or receive some (:class:`Connection`).
3. A client gets its answer even if the answer is known before the end of the client's body (:class:`Front`).
4. ``/health`` and ``/ready`` are answered even when other requests are refused.
5. A transfer ends within its time. If a new transfer needs room, the service ends the slowest one (:class:`Transfer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable

import h11
import uvicorn
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fastagg._types import Foreign

PIECE = 1 << 16  # the most bytes of a model that are handed to a connection at a time
APART = "/health", "/ready"  # the paths that are answered even when other requests are refused
SPARE = 64  # so many more connections than requests are allowed, for health checks and refusals
SILENT = 10.0  # the most seconds of a TLS handshake, and the time between two looks at a connection
FAIR = 5.0  # seconds during which a new transfer does not count as slow, and over which its pace is measured
LONGEST_URL = 4096  # the most bytes of a request's URL
LATER = {"Retry-After": "1"}  # tells a client to ask again after a second
_REFUSALS = {  # status -> the text and the headers
    405: ("Method Not Allowed", {"Allow": "GET, POST"}), 414: ("URI Too Long", {}),
    503: ("too many requests at a time: ask again later", LATER),
}  # fmt: skip
_log = logging.getLogger("fastagg.serve")


class Transfer:
    """The progress of a download or an upload. The transfer runs inside ``async with transfer.timer``, which raises
    TimeoutError ``seconds`` after the constructor, or when :meth:`cut` is called."""

    def __init__(self, seconds: float) -> None:
        self.begun = self._at = time.monotonic()
        self._moved = 0.0
        self.timer = asyncio.timeout(seconds)

    def move(self, nbytes: int) -> float:
        """Add ``nbytes`` bytes that have moved. Return the weighted number of all bytes so far. A byte's weight is 1 at
        first, and falls by the factor e in :data:`FAIR` seconds."""
        now = time.monotonic()
        self._moved, self._at = self._moved * math.exp((self._at - now) / FAIR) + nbytes, now
        return self._moved

    @property
    def pace(self) -> tuple[bool, float]:
        """A sort key, which is smallest for the slowest transfer. The first item is whether the transfer is too new to
        count as slow. The second item is the weighted number of bytes from :meth:`move`."""
        return time.monotonic() - self.begun < FAIR, self.move(0)

    def cut(self) -> None:
        """End the transfer, unless it has ended."""
        if not self.timer.expired():
            self.timer.reschedule(0.0)


class ModelDownload(StreamingResponse):
    """A response that sends memory in pieces. It sends a piece when the connection's buffer has room again.

    Args:
        body: the memory to send. A piece is copied only when it is sent.
        transfer: the download's progress. If the transfer is cut or takes too long, the connection is closed.
        reading: contexts that are closed when the download has ended.
    """

    def __init__(
        self, body: Iterable[memoryview], headers: dict[str, str], transfer: Transfer, reading: contextlib.ExitStack
    ) -> None:
        held = list(body)
        pieces = (view[at : at + PIECE] for view in held for at in range(0, len(view), PIECE))
        length = {"Content-Length": str(sum(map(len, held)))}
        kind = {"Content-Type": "application/octet-stream"}
        super().__init__(_each(pieces, transfer), headers={**kind, **headers, **length})
        self.transfer, self.reading = transfer, reading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # If the time is over, the answer ends before its Content-Length. Uvicorn then closes the connection.
        with self.reading, contextlib.suppress(TimeoutError):
            async with self.transfer.timer:
                await super().__call__(scope, receive, send)


async def _each(pieces: Iterable[memoryview], transfer: Transfer) -> AsyncIterator[memoryview]:
    for piece in pieces:  # for an iterable that is not async, StreamingResponse would use a thread for each piece
        yield piece
        transfer.move(len(piece))
        await asyncio.sleep(0)  # lets the event loop notice a lost connection before the next piece is sent


class Front:
    """The outermost layer of the app. It refuses some requests before a handler sees them: too many at a time, too long
    URLs and HEAD. It logs a line for each request. No answer ends before the whole request has come, because a client
    that still sends to a closed connection would lose the answer. The rest of a body that no handler reads is dropped.

    Args:
        app: the app that answers.
        seconds: a function from the number of a body's bytes to the seconds in which the whole body must come.
        requests: the most requests that are handled at a time. Requests to the paths in :data:`APART` do not count.
    """

    def __init__(self, app: ASGIApp, seconds: Callable[[int], float], requests: int) -> None:
        self.app, self.seconds, self.requests = app, seconds, requests
        self.at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        url = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        more, ended, failure = True, False, None

        async def receive_noted() -> Message:
            nonlocal more
            message = await receive()
            more = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def send_all_but_the_end(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.start":
                level = logging.INFO if message["status"] < 400 else logging.WARNING
                line = '%s "%s %.200s" %d'
                _log.log(level, line, scope["client"] and scope["client"][0], scope["method"], url.decode("latin-1"),
                         message["status"])  # fmt: skip
            else:
                ended = not message.get("more_body", False)
                message = {**message, "more_body": True}
            await send(message)

        is_apart = scope["path"] in APART
        refused = (
            414 if len(url) > LONGEST_URL
            else 405 if scope["method"] == "HEAD" and not is_apart  # Starlette would treat HEAD as GET, and open a task
            else 503 if self.at_work >= self.requests and not is_apart
            else None
        )  # fmt: skip
        app = self.app
        if refused is not None:
            says, headers = _REFUSALS[refused]
            app = JSONResponse({"error": says}, refused, headers)
        self.at_work += not is_apart
        try:
            await app(scope, receive_noted, send_all_but_the_end)
        except Exception as error:  # Starlette has already answered with 500
            failure = error
        finally:
            self.at_work -= not is_apart
        if ended:
            scope["answered"] = True
            length = dict(scope["headers"]).get(b"content-length", b"0")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.seconds(int(length))):
                    while more:
                        await receive_noted()
            await send({"type": "http.response.body"})
        if failure is not None:
            raise failure


class Connection(H11Protocol):
    """A connection of uvicorn that is cut when no bytes move on it for 10 to 20 seconds while the client must send the
    head of a request, otherwise for 30 to 40 seconds. uvicorn itself waits for ever for the head of a request, the body
    of a refused request, a client that reads nothing, and the last bytes of a closing connection.

    Attributes:
        heard: the event loop's time when the client last sent a whole head or a part of a body.
        moves: how often the client has sent such bytes, or received enough that the server may send more.
        still: the number of calls of :meth:`look` in a row that found no change.
    """

    seconds = SILENT  # the time between two calls of `look`

    def __init__(self, *args: Foreign, **settings: Foreign) -> None:
        super().__init__(*args, **settings)
        self.heard = self.loop.time()
        self.moves = self.still = 0
        self.seen: tuple[object, ...] | None = None
        self.is_cut = False
        self.greeting: asyncio.Task[None] | None = None  # the task of `Listener.greet`, which does the TLS handshake
        self.over = asyncio.Event()  # set when the connection is lost

    def connection_made(self, transport: Foreign) -> None:
        super().connection_made(transport)
        self.look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        self.over.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self.moves += 1
            self.heard = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.moves += 1

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:  # an answer has begun, so no other answer can be sent
            self.cut()

    @property
    def serves_nobody(self) -> bool:
        """Whether the connection waits for a request, or has sent its answer."""
        return self.cycle is None or self.cycle.response_complete or "answered" in self.scope

    def cut(self) -> None:
        """Close the connection, and drop all bytes that have not been sent yet."""
        self.is_cut = True
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()

    def look(self) -> None:
        """Cut the connection if one call, or three calls while it serves a request, found no change since the call
        before. While the service computes an answer, do not cut. This method calls itself every ``seconds`` seconds."""
        cycle, waiting = self.cycle, self.transport.get_write_buffer_size()
        answered = cycle is None or cycle.response_complete
        ended = self.transport.is_closing() or (answered and cycle is not None and cycle.more_body)
        now = (cycle, ended) if ended else (cycle, ended, self.moves, waiting)
        at_work = not answered and not waiting and (self.flow.read_paused or not cycle.more_body)
        self.still = self.still + 1 if now == self.seen and not at_work else 0
        if self.still >= (1 if self.serves_nobody and not ended else 3):
            self.cut()
        self.seen = now
        self.timer = self.loop.call_later(self.seconds, self.look)


class Listener(uvicorn.Server):
    """A server of uvicorn that accepts the connections itself. asyncio's accept loop has no limit of connections, and
    fills the log while the process has too many open files.

    Args:
        config: uvicorn's configuration.
        listener: the listening socket.
        connections: the most connections at a time, besides :data:`SPARE`.
    """

    def __init__(self, config: uvicorn.Config, listener: socket.socket, connections: int) -> None:
        super().__init__(config)
        self.listener, self.limit = listener, connections + SPARE
        self.open: set[Connection] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self.listener.setblocking(False)
        self.accepting = asyncio.create_task(self.accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.accepting.cancel()
        await asyncio.wait([self.accepting])
        self.listener.close()
        for connection in self.open - self.server_state.connections:
            connection.cut()
        await super().shutdown(sockets=[])

    async def accept(self) -> None:
        """Accept connections until the task is cancelled."""
        loop, said = asyncio.get_running_loop(), -math.inf
        while True:
            await asyncio.sleep(0)  # lets other tasks run, because sock_accept does not while connections are waiting
            try:
                accepted, _ = await loop.sock_accept(self.listener)
            except OSError as error:  # for example too many open files
                if loop.time() - said > 60:
                    said = loop.time()
                    _log.warning("a connection was not accepted: %s; there are %d (ulimit -n)", error, len(self.open))
                self.make_room(0)
                await asyncio.sleep(0.05)
                continue
            if not self.make_room(self.limit):
                accepted.close()
                continue
            connection = Connection(self.config, self.server_state, self.lifespan.state, loop)
            self.open.add(connection)
            connection.greeting = asyncio.create_task(self.greet(connection, accepted))

    def make_room(self, limit: int) -> bool:
        """Return whether there is room for a connection. If there are ``limit`` connections, first cut the idle
        connection that has been silent longest. If none is idle, there is no room."""
        there = [connection for connection in self.open if not connection.is_cut]
        if len(there) < limit:
            return True
        silent = min(
            (connection for connection in there if connection.serves_nobody),
            key=lambda connection: connection.heard,
            default=None,
        )
        if silent is not None:
            silent.cut()
        return silent is not None

    async def greet(self, connection: Connection, accepted: socket.socket) -> None:
        """Connect an accepted socket, with a TLS handshake if the service uses TLS. Return when it has been closed."""
        limits: Foreign = {"ssl_handshake_timeout": SILENT, "ssl_shutdown_timeout": SILENT} if self.config.ssl else {}

        def made() -> Connection:
            return connection

        try:
            await connection.loop.connect_accepted_socket(made, accepted, ssl=self.config.ssl, **limits)
            await connection.over.wait()
        except OSError:  # the handshake failed
            pass
        finally:
            self.open.discard(connection)
