"""A durable federated server over HTTP, on Starlette.

GET  /task/{client}                                  the model, [d] fp32, little endian; its version in headers
POST /update/{client}/{version}?incarnation=N        the update, [d] fp16 or fp32 (Content-Type says which);
                                                     200 when it is on the disk
GET  /health

pip install ".[http]" in the repository
FASTAGG_TOKEN=secret python server.py state/ --port 8000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import fastagg

TYPES = {"application/x-float32": torch.float32, "application/x-float16": torch.float16}
REMEMBERED = 10_000  # how many receipts are kept for clients that post an update again
STATUS: list[tuple[type[Exception], int]] = [  # the first match counts
    (fastagg.StaleIncarnation, 410), (fastagg.UnknownClient, 404), (fastagg.UnknownVersion, 409), (fastagg.Busy, 429),
    (fastagg.NotDurable, 503), (fastagg.FastaggError, 422),
]  # fmt: skip


class Refused(Exception):
    """A request that is refused before the server is asked."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Service:
    """Handles the requests to one server.

    Args:
        make: makes the server of a new folder.
        token: the token that clients send in ``Authorization: Bearer``.
        seconds: how many seconds a client may take to send its update.
        uploads: how many updates may be received at a time. Further clients are told to come later.
    """

    def __init__(
        self, folder: str, make: Callable[[], fastagg.Server], token: str, *, seconds: float = 60.0, uploads: int = 64
    ) -> None:
        if not token:
            raise SystemExit("a token is needed: set FASTAGG_TOKEN")
        self.folder, self.make, self.token, self.seconds = folder, make, token.encode(), seconds
        self.free = uploads
        self.done: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self.coming: set[tuple[Any, ...]] = set()
        self.server: fastagg.Server

    def app(self) -> Starlette:
        """Return the app for uvicorn."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            with fastagg.open(self.folder, self.make) as self.server:
                yield

        routes = [
            Route("/task/{client}", self.guarded(self.task), methods=["GET"]),
            Route("/update/{client}/{version}", self.guarded(self.update), methods=["POST"]),
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
                return JSONResponse({"error": str(error)}, error.status)
            except ClientDisconnect:
                return Response(status_code=400)  # the client has gone
            except fastagg.FastaggError as error:
                status = next(status for kind, status in STATUS if isinstance(error, kind))
                later = {"Retry-After": "1"} if status in (429, 503) else None
                return JSONResponse({"error": type(error).__name__, "says": str(error)}, status, later)

        return handle

    async def health(self, request: Request) -> Response:
        return JSONResponse({"version": self.server.version, "open": True})

    async def task(self, request: Request) -> Response:
        found = await run_in_threadpool(self.server.dispatch, request.path_params["client"])
        headers = {"X-Version": str(found.version), "X-Incarnation": str(found.incarnation)}
        body = memoryview(found.flat.numpy()).cast("B")  # the version itself, which never changes
        return Response(bytes(body), media_type="application/x-float32", headers=headers)

    async def update(self, request: Request) -> Response:
        client, version = request.path_params["client"], _whole(request.path_params["version"], "version")
        incarnation = _whole(request.query_params.get("incarnation", ""), "incarnation")
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
        key = client, version, incarnation
        if key in self.done:  # the receipt was lost on its way, so it is sent again
            return JSONResponse(self.done[key])
        if key in self.coming:
            raise Refused(409, "this update is on its way already")
        if not self.free:
            raise Refused(429, "too many updates at a time: send it again later")
        self.free -= 1
        self.coming.add(key)
        try:
            receipt = await self.received(request, client, version, incarnation, samples, dtype)
        finally:
            self.free += 1
            self.coming.discard(key)
        said = {
            "version": receipt.version,
            "applied": receipt.applied,
            "delay": receipt.delay,
            "durable": receipt.durable,
        }
        self.done[key] = said
        if len(self.done) > REMEMBERED:
            self.done.popitem(last=False)
        return JSONResponse(said)

    async def received(
        self, request: Request, client: str, version: int, incarnation: int, samples: float | None, dtype: torch.dtype
    ) -> fastagg.Receipt:
        """Receive an update. Chunks go to the folder as they arrive; the step runs in a thread."""
        upload = await run_in_threadpool(
            self.server.receiving, client, version, samples, dtype=dtype, incarnation=incarnation
        )
        stack = contextlib.ExitStack()
        stack.enter_context(upload)
        try:
            async with asyncio.timeout(self.seconds):
                async for chunk in request.stream():
                    await run_in_threadpool(upload.write, chunk)
        except BaseException as error:
            stack.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, TimeoutError):
                raise Refused(408, f"the update took longer than {self.seconds} s") from None
            raise
        # Shielded, so that the update is taken or refused as a whole, whatever happens to the connection.
        await asyncio.shield(run_in_threadpool(stack.close))
        return upload.receipt


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refused(400, f"{name}: expected a whole number, got {text!r:.50}")
    return int(text)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise Refused(400, f"num_samples: expected a number, got {text!r:.50}") from None


def main() -> None:
    """Serve softmax regression on the digits. Put your own model into ``make``."""
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()

    def make() -> fastagg.Server:
        torch.manual_seed(0)
        return fastagg.FedBuff(torch.nn.Linear(64, 10), buffer_size=2, lease=3600.0, max_waiting=256)

    service = Service(given.folder, make, os.environ.get("FASTAGG_TOKEN", ""))
    uvicorn.run(service.app(), port=given.port, timeout_keep_alive=30, limit_concurrency=512)


if __name__ == "__main__":
    main()
