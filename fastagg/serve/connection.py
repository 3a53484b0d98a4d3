"""Limits the number of connections, requests and transfers, and ends connections on which no bytes move.

These rules hold for all routes and clients, with and without a token:

1. :class:`Listener` limits the connections, including TLS handshakes. Beyond the limit, a new connection replaces the
   idle connection that has been silent longest. So silent connections never keep others out.
2. A connection is cut if its client sends nothing, or if no bytes move in either direction (:class:`Connection`).
3. A client that sends a body gets its answer, even if the answer is known before the body's end (:class:`Front`).
4. ``/health`` and ``/ready`` are answered even when other requests are refused.
5. A transfer ends within its time. If another transfer needs room, the slowest one ends earlier (:class:`Transfer`).
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
SPARE = 64  # the number of connections above the limit of requests, for health checks and refusals
SILENT = 10.0  # seconds in which a client must finish its handshake, and send the whole head of a request
FAIR = 5.0  # seconds during which a new transfer does not count as slow
LONGEST_URL = 4096  # the most bytes of a request's URL
LATER = {"Retry-After": "1"}
_REFUSALS = {  # status -> the text and the headers
    405: ("Method Not Allowed", {"Allow": "GET, POST"}), 414: ("URI Too Long", {}),
    503: ("too many requests at a time: ask again later", LATER),
}  # fmt: skip
_log = logging.getLogger("fastagg.serve")


class Transfer:
    """The progress of a download or an upload. ``async with transfer.timer`` raises TimeoutError after ``seconds``, or
    when :meth:`cut` is called."""

    def __init__(self, seconds: float) -> None:
        self.begun = self._at = time.monotonic()
        self._moved = 0.0
        self.timer = asyncio.timeout(seconds)

    def move(self, nbytes: int) -> float:
        """Note that ``nbytes`` more bytes have moved. Return a weighted number of the bytes so far, in which a byte's
        weight falls by the factor e in :data:`FAIR` seconds."""
        now = time.monotonic()
        self._moved, self._at = self._moved * math.exp((self._at - now) / FAIR) + nbytes, now
        return self._moved

    @property
    def pace(self) -> tuple[bool, float]:
        """A sort key, which is smallest for the slowest transfer. Its first item is True while the transfer is too new
        to count as slow."""
        return time.monotonic() - self.begun < FAIR, self.move(0)

    def cut(self) -> None:
        """End the transfer, unless it has ended."""
        if not self.timer.expired():
            self.timer.reschedule(0.0)


class ModelDownload(StreamingResponse):
    """Sends memory in pieces. Each piece is sent when the client has received the piece before.

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
        # Uvicorn closes a connection whose answer ends before its length.
        with self.reading, contextlib.suppress(TimeoutError):
            async with self.transfer.timer:
                await super().__call__(scope, receive, send)


async def _each(pieces: Iterable[memoryview], transfer: Transfer) -> AsyncIterator[memoryview]:
    for piece in pieces:  # for an iterable that is not async, StreamingResponse would use a thread for each piece
        yield piece
        transfer.move(len(piece))
        await asyncio.sleep(0)  # lets the event loop notice a lost connection before the next piece is sent


class Front:
    """The outermost layer of the app. It refuses requests that no handler should see, and logs a line for each request.
    No answer ends before the whole request has come, because a client that still sends to a closed connection would
    lose the answer. A body that no handler reads is dropped as it comes.

    Args:
        app: the app that answers.
        seconds: a function. For the number of a body's bytes, it returns how many seconds to wait for the whole body.
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
    """A connection of uvicorn that is cut when no bytes move on it: after 10 to 20 seconds while the client must send
    the head of a request, otherwise after 30 to 40 seconds. uvicorn waits for ever in four cases: for the head of a
    request, the body of a refused request, a client that reads nothing, and the last bytes of a closing connection.

    Attributes:
        heard: the loop's time at which the client last sent a whole head or a part of a body.
    """

    seconds = SILENT  # the time between two calls of `look`

    def __init__(self, *args: Foreign, **settings: Foreign) -> None:
        super().__init__(*args, **settings)
        self.heard = self.loop.time()
        self.moves = self.still = 0
        self.seen: tuple[object, ...] | None = None
        self.is_cut = False
        self.greeting: asyncio.Task[None] | None = None  # the handshake, during which the connection has no transport
        self.over = asyncio.Event()

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
        """Close the connection at once."""
        self.is_cut = True
        if self.transport is not None:
            self.transport.abort()
        elif self.greeting is not None:
            self.greeting.cancel()

    def look(self) -> None:
        """Cut the connection if no bytes have moved since the last one or three calls. Do not cut it while the service
        is still computing an answer."""
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
    """A server of uvicorn that accepts connections itself. asyncio's own accept loop has no limit of connections, and
    fills the log when the process has too many open files.

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
            await asyncio.sleep(0)  # sock_accept does not yield to other tasks while connections are waiting
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
        """If there are ``limit`` connections, cut the idle connection that has been silent longest. Return whether
        there is room now."""
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
        """Connect an accepted socket, with a TLS handshake if the service uses TLS. Return when the connection ends."""
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
