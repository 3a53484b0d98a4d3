"""A durable federated server over HTTP, on Starlette and uvicorn.

GET  /task/{client}            the model, [d] fp32, little endian; the task's id and version are in headers.
                               303 if ``publish`` has put the model elsewhere
POST /update/{client}/{task}   the update, [d] fp16 or fp32 (Content-Type says which); 200 when it is on the disk
GET  /health                   200, or 503 if the disk is full or has failed

pip install ".[http]" in the repository
FASTAGG_TOKEN=secret python server.py state/ --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import h11
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

import fastagg

TYPES = {"application/x-float32": torch.float32, "application/x-float16": torch.float16}
PIECE = 1 << 16  # bytes of a model that wait for one client
LATER = {"Retry-After": "1"}
Publish = Callable[[fastagg.Dispatch], str]
STATUS: list[tuple[type[Exception], int]] = [  # the first match counts
    (fastagg.StaleIncarnation, 410), (fastagg.UnknownClient, 404), (fastagg.UnknownVersion, 409), (fastagg.Busy, 429),
    (fastagg.NotDurable, 503), (fastagg.FastaggError, 422),
]  # fmt: skip


class Refused(Exception):
    """A request that is refused before the server is asked."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Download(StreamingResponse):
    """Sends a version in pieces, the next one when the client has taken the last one."""

    def __init__(
        self, body: memoryview, headers: dict[str, str], seconds: float, counted: contextlib.ExitStack
    ) -> None:
        pieces = (body[at : at + PIECE] for at in range(0, len(body), PIECE))
        super().__init__(
            _each(pieces), media_type="application/x-float32", headers={**headers, "Content-Length": str(len(body))}
        )
        self.seconds, self.counted = seconds, counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.counted, contextlib.suppress(TimeoutError):  # uvicorn closes what ends before its length
            async with asyncio.timeout(self.seconds):
                await super().__call__(scope, receive, send)


class Connection(H11Protocol):
    """A connection of uvicorn that is cut when nothing moves on it. uvicorn itself waits for ever, in four places:
    for the head of a request, for the body of one that it has refused, for a client that takes nothing, and for the
    last bytes before it closes."""

    seconds = 30.0  # after one to two times as many

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.moves, self.seen = 0, None
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


class Service:
    """Handles the requests to one server. Whoever exceeds a limit is told to come later.

    Args:
        make: makes the server of a new folder.
        token: the token that clients send in ``Authorization: Bearer``.
        seconds, slowest: a model or an update of n bytes may take ``seconds + n / slowest`` seconds on its way.
        uploads: how many updates may be received at a time. Each takes about 0.3 MB.
        downloads: how many models may be sent at a time. Each takes about 0.2 MB, because all that send the same
            version read the same memory.
        versions: how many different versions may be on their way at a time. Each takes 4 bytes a parameter.
        publish: called once for every version that is sent. It puts ``task.flat`` where clients can get it, and returns
            its path or URL, to which they are sent. ``task.version`` and ``task.incarnation`` name it for ever.
    """

    def __init__(
        self, folder: str, make: Callable[[], fastagg.Server], token: str, *, seconds: float = 60.0,
        slowest: float = 50_000.0, uploads: int = 64, downloads: int = 256, versions: int = 4,
        publish: Publish | None = None,
    ) -> None:  # fmt: skip
        if not token:
            raise SystemExit("a token is needed: set FASTAGG_TOKEN")
        self.folder, self.make, self.token, self.publish = folder, make, token.encode(), publish
        self.seconds, self.slowest, self.free = seconds, slowest, uploads
        self.downloads, self.versions = downloads, versions
        self.sending: Counter[int] = Counter()  # how many downloads there are of a version
        self.published: OrderedDict[tuple[Any, ...], asyncio.Task[str]] = OrderedDict()
        self.server: fastagg.Server

    def app(self) -> Starlette:
        """Return the app for uvicorn."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            with fastagg.open(self.folder, self.make) as self.server:
                yield

        routes = [
            Route("/task/{client}", self.guarded(self.task), methods=["GET"]),
            Route("/update/{client}/{task}", self.guarded(self.update), methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    def guarded(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Give every refusal a status and a reason, as JSON."""

        async def handle(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, b"Bearer " + self.token):
                return JSONResponse({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
            try:
                return await handler(request)
            except Refused as error:
                return JSONResponse({"error": str(error)}, error.status, LATER if error.status in (429, 503) else None)
            except ClientDisconnect:
                return Response(status_code=400)  # the client has gone
            except fastagg.FastaggError as error:
                status = next(status for kind, status in STATUS if isinstance(error, kind))
                says = {"error": type(error).__name__, "says": str(error)}
                return JSONResponse(says, status, LATER if status in (429, 503) else None)

        return handle

    async def health(self, request: Request) -> Response:
        """Say whether an update would be taken: what was acknowledged is on the disk, and the next one has room."""
        says = {"version": self.server.version, "open": True, "downloads": self.sending.total()}
        try:
            await run_in_threadpool(self.server.flush)
            if shutil.disk_usage(self.folder).free < 4 * self.server.layout.size:
                raise fastagg.NotDurable(f"{self.folder}: the disk is full")
        except fastagg.FastaggError as error:
            return JSONResponse({**says, "open": False, "error": str(error)}, 503, LATER)
        return JSONResponse(says)

    async def task(self, request: Request) -> Response:
        self.check_room(self.server.version)
        found = await run_in_threadpool(self.server.dispatch, request.path_params["client"])
        headers = {"X-Task": str(found.id), "X-Version": str(found.version)}
        headers["Cache-Control"] = "no-store"
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.counted(found.version))
            if self.publish is not None and (where := await self.place_of(found)):
                return Response(status_code=303, headers={**headers, "Location": where})
            body = memoryview(found.flat.numpy()).cast("B")  # the version itself, which never changes
            return Download(body, headers, self.allowed(len(body)), stack.pop_all())

    def allowed(self, nbytes: int) -> float:
        """Return how many seconds so many bytes may take."""
        return self.seconds + nbytes / self.slowest

    def check_room(self, version: int) -> None:
        """Refuse one more download if it would exceed a limit."""
        if self.sending.total() >= self.downloads:
            raise Refused(503, "too many models are being sent: ask again later")
        if version not in self.sending and len(self.sending) >= self.versions:
            raise Refused(503, f"{self.versions} older versions are still being sent: ask again later")

    @contextlib.contextmanager
    def counted(self, version: int) -> Iterator[None]:
        """Count a download of this version for as long as it takes."""
        self.check_room(version)
        self.sending[version] += 1
        try:
            yield
        finally:
            self.sending[version] -= 1
            self.sending += Counter()  # without those of which none is left

    async def place_of(self, found: fastagg.Dispatch) -> str | None:
        """Publish a version, once, and return where. None if this fails: then it is sent from here."""
        assert self.publish is not None
        key = found.version, found.incarnation
        if key not in self.published:
            self.published[key] = asyncio.create_task(run_in_threadpool(self.publish, found))
            if len(self.published) > self.versions:
                self.published.popitem(last=False)
        try:
            return await asyncio.shield(self.published[key])
        except Exception:
            self.published.pop(key, None)
            logging.getLogger("uvicorn.error").exception("version %d is not published", found.version)
            return None

    async def update(self, request: Request) -> Response:
        client, task = request.path_params["client"], _whole(request.path_params["task"], "task")
        samples = _number(request.query_params.get("num_samples"))
        dtype = TYPES.get(request.headers.get("content-type", ""))
        if dtype is None:
            raise Refused(415, f"Content-Type: expected one of {', '.join(TYPES)}")
        needed = self.server.layout.size * dtype.itemsize
        if "content-length" not in request.headers:
            raise Refused(411, "Content-Length is needed")
        length = _whole(request.headers["content-length"], "Content-Length")
        if length != needed:
            raise Refused(413 if length > needed else 400, f"expected {needed} bytes, got {length}")
        if not self.free:
            raise Refused(429, "too many updates at a time: send it again later")
        self.free -= 1
        try:
            found: fastagg.Receipt | fastagg.AlreadyCounted = await self.received(request, client, task, samples, dtype)
        except fastagg.AlreadyCounted as error:  # the answer was lost on its way, so it is given again
            if error.version is None:  # it is not remembered
                raise
            found = error
            await run_in_threadpool(self.server.flush)  # the first one may wait for the disk yet
        finally:
            self.free += 1
        return JSONResponse({"version": found.version, "applied": found.applied})

    async def received(
        self, request: Request, client: str, task: int, samples: float | None, dtype: torch.dtype
    ) -> fastagg.Receipt:
        """Receive an update. Chunks go to the folder as they arrive; the step runs in a thread."""
        upload = await run_in_threadpool(self.server.receiving, client, None, samples, dtype=dtype, task=task)
        allowed = self.allowed(self.server.layout.size * dtype.itemsize)
        stack = contextlib.ExitStack()
        stack.enter_context(upload)
        try:
            async with asyncio.timeout(allowed):
                async for chunk in request.stream():
                    await run_in_threadpool(upload.write, chunk)
        except BaseException as error:
            stack.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, TimeoutError):
                raise Refused(408, f"the update took longer than {allowed:.0f} s") from None
            raise
        # Shielded, so that the update is taken or refused as a whole, whatever happens to the connection.
        await asyncio.shield(run_in_threadpool(stack.close))
        return upload.receipt


async def _each(pieces: Iterator[memoryview]) -> AsyncIterator[memoryview]:
    for piece in pieces:  # not StreamingResponse's own way, which is a thread for every piece
        yield piece


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refused(400, f"{name}: expected a whole number, got {text!r:.50}")
    return int(text)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise Refused(400, f"num_samples: expected a number, got {text!r:.50}") from None


def serve(service: Service, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C, and then for 3 more seconds at most."""
    uvicorn.run(
        service.app(), port=port, http=Connection, ws="none", timeout_keep_alive=30, timeout_graceful_shutdown=3,
        limit_concurrency=512,
    )  # fmt: skip


def main() -> None:
    """Serve softmax regression on the digits. Put your own model into ``make``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()

    def make() -> fastagg.Server:
        torch.manual_seed(0)
        return fastagg.FedBuff(torch.nn.Linear(64, 10), buffer_size=2, lease=3600.0, max_waiting=256)

    serve(Service(given.folder, make, os.environ.get("FASTAGG_TOKEN", "")), given.port)


if __name__ == "__main__":
    main()
