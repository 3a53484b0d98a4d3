"""Answers HTTP requests for a model in parts. Each part has a server with a folder. Arrays are little endian.

GET  /task/{client}?part=0&speed=V   sends a part as a task, [d] fp32, or bf16 if the server's model_dtype is bf16.
                                     Headers have the task's id and version. V is the client's local steps a second
                                     (optional). With &format=bf16 or int8, the task's model is encoded.
POST /update/{client}/{task}?part=0  takes the task's update, [d] fp32, fp16 or bf16, or encoded. The status is 200 when
                                     the update is on the disk.
GET  /model, /model?part=0           sends the model, or a part of it, as safetensors, and opens no task
GET  /parts                          tells which arrays of the model each part has
POST /heartbeat/{client}             tells for each part the client's last task, if it is open
GET  /metrics                        sends metrics for Prometheus
GET  /health, /ready                 tells whether the process works (health) and whether it takes updates (ready)

With ``after=V`` a request for a task, a model or a heartbeat waits up to ``wait=S`` seconds (by default 0, at most 60)
for a version above V. The status is 204 if no such version was made. ``incarnation=`` is the value of the header
X-Incarnation that came with V. With it, the status is 410 if a restart has lost V.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import torch
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as Refused  # raised before a server is asked
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fastagg import errors
from fastagg._types import Plain
from fastagg.durable.log import SMALL
from fastagg.durable.trees import DTYPES
from fastagg.model.parts import PartList
from fastagg.serve.connection import LATER, Front, ModelDownload, Transfer
from fastagg.serve.metrics import Metrics
from fastagg.serve.served import Copy, Sent, ServedPart
from fastagg.serve.tokens import OPERATOR, Tokens
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server
from fastagg.storage.encoded import largest

ENCODED, BF16 = "application/x-fastagg-encoded", "application/x-bfloat16"
TYPES = {
    "application/x-float32": torch.float32, "application/x-float16": torch.float16,
    BF16: torch.bfloat16, ENCODED: torch.uint8,
}  # fmt: skip
CHUNK = 1 << 20  # bytes of an update that are written in one call
LONGEST = 60.0  # the most seconds that a request waits for a newer version
SPARE = 1 << 20  # if the disk has fewer free bytes than these and one update, the service is not ready
STATUS: list[tuple[type[Exception], int]] = [  # the status of an error is that of the first class that matches
    (errors.OtherClient, 403), (errors.StaleIncarnation, 410), (errors.UnknownClient, 404),
    (errors.UnknownVersion, 409), (errors.TooSoon, 409), (errors.Busy, 429), (errors.NotDurable, 503),
    (errors.FastaggError, 422),
]  # fmt: skip
Handler = Callable[[Request], Awaitable[Response]]
_log = logging.getLogger("fastagg.serve")


class Service:
    """Handles the requests to the servers of a model's parts.

    Args:
        servers: a server of :func:`fastagg.open` for each part of ``cut``. The service closes the servers at its end.
        cut: the result of :func:`fastagg.parts` for the model.
        folder: the folder that contains the servers' folders.
        tokens: the tokens that requests must have. None: requests need no token.
        seconds, slowest: the transfer of a model or an update of n bytes may take ``seconds + n / slowest`` seconds.
        uploads: how many updates of a part may arrive at a time. Each takes about 1 MB. If one more update begins, the
            slowest upload is ended, or, if all have just begun, the new update is refused.
        reading: the most bytes of all versions that are being sent. Downloads of the same version in the same format
            share its memory, and count once. If a new version needs room, the downloads of another version are ended:
            the version with the slowest downloads. None: 1 GB, or four versions of the model if that is more.
        requests: the most requests that are handled at a time. Further requests get the status 503.
    """

    def __init__(
        self, servers: Sequence[Server], cut: PartList, folder: Path, tokens: Tokens | None = None, *,
        seconds: float = 60.0, slowest: float = 50_000.0, uploads: int = 64, reading: float | None = None,
        requests: int = 512,
    ) -> None:  # fmt: skip
        self.folder, self.tokens = folder, tokens
        self.seconds, self.slowest, self.uploads = seconds, slowest, uploads
        self.requests = requests
        self.parts = [ServedPart(server) for server in servers]
        self.reading = max(1e9, 4 * sum(served.nbytes for served in self.parts)) if reading is None else reading
        # The most bytes that an encoded update can have. Other updates have fewer.
        self.largest = max(largest(served.server.layout.size) for served in self.parts)
        self.own = CapacityLimiter(2)  # the threads that only health checks use
        self.layout = json.dumps(_layout(cut, servers))
        self.metrics = Metrics(servers)
        self._newer = asyncio.Event()  # after each step, this event is set and replaced by a new event

    def app(self) -> ASGIApp:
        """Return the app for uvicorn."""

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            with contextlib.ExitStack() as stack:
                for served in self.parts:
                    stack.enter_context(served.server)
                due = asyncio.create_task(self.end_rounds())
                yield
                due.cancel()

        routes = [
            Route("/task/{client:path}", self.guarded(self.task), methods=["GET"]),
            Route("/update/{client:path}/{task}", self.guarded(self.update), methods=["POST"]),
            Route("/heartbeat/{client:path}", self.guarded(self.heartbeat), methods=["POST"]),
            Route("/model", self.guarded(self.model), methods=["GET"]),
            Route("/parts", self.guarded(self.which), methods=["GET"]),
            Route("/metrics", self.guarded(self.scraped, OPERATOR), methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
        ]
        return Front(
            Starlette(lifespan=lifespan, routes=routes),
            lambda nbytes: self.allowed(min(nbytes, self.largest)),
            self.requests,
        )

    def guarded(self, handler: Handler, who: str | None = None) -> Handler:
        """Return a handler that first checks the request's token, and then calls ``handler``. The token must allow the
        client in the path, or ``who`` if the path has no client (None: any token of the file). An answer to a refused
        request has a status and the reason as JSON."""

        async def handle(request: Request) -> Response:
            client = request.path_params.get("client", who)
            authorization = request.headers.get("authorization", "")
            if self.tokens is not None and not self.tokens.allow(authorization, client):
                return JSONResponse({"error": "Unauthorized"}, 401, {"WWW-Authenticate": "Bearer"})
            before = [served.server.version for served in self.parts]
            says: Plain
            try:
                return await handler(request)
            except Refused as error:
                says, status = {"error": error.detail}, error.status_code
            except ClientDisconnect:
                return Response(status_code=400)  # the client has closed the connection
            except errors.FastaggError as error:
                status = next(status for kind, status in STATUS if isinstance(error, kind))
                says = {"error": type(error).__name__, "says": str(error)}
                if isinstance(error, errors.TooSoon):  # the client can wait for a version of this part above this one
                    part = self.parts.index(self.part(request))
                    says |= {"part": part, "version": before[part]}
            return JSONResponse(says, status, LATER if status in (429, 503) else None)

        return handle

    async def task(self, request: Request) -> Response:
        served = self.part(request)
        if not await self.is_newer(request, [served]):
            return Response(status_code=204)
        speed, format = _number(request.query_params.get("speed"), "speed"), request.query_params.get("format")
        task = await run_in_threadpool(_sent, served.server, _client(request, served.server), speed, format)
        self.look()  # the call may have ended a round that was due
        headers = {
            "X-Task": str(task.id), "X-Version": str(task.version), "X-Incarnation": str(task.incarnation),
            "Cache-Control": "no-store",
        }  # fmt: skip
        if task.local_steps is not None:
            headers["X-Local-Steps"] = str(task.local_steps)
        if (encoded := task.encoded) is not None:
            headers["Content-Type"] = ENCODED
        elif task.flat.dtype is torch.bfloat16:
            headers["Content-Type"] = BF16
        body = _view(task.flat) if encoded is None else encoded.native.bytes.data
        return self.download([body], headers, [(served, (task.version, format))])

    async def model(self, request: Request) -> Response:
        chosen = self.chosen(request)
        if not await self.is_newer(request, chosen):
            return Response(status_code=204)
        entries: Plain = {}
        held, at = [], 0
        versions: list[tuple[ServedPart, Sent]] = []
        headers = {"X-Version": str(self.version(chosen)), "X-Incarnation": self.incarnation(chosen)}
        for served in chosen:
            versions.append((served, (served.server.version, None)))
            flat, more = served.server._engine.current()  # one version, which does not change during the download
            arrays = served.server.layout.views(flat, more.values, more.counters, as_held=True)
            for name, array in arrays.items():
                entries[name] = {
                    "dtype": DTYPES[array.dtype], "shape": list(array.shape),
                    "data_offsets": [at, at := at + array.nbytes],
                }  # fmt: skip
                held.append(_view(array))
        head = json.dumps(entries).encode()
        head += b" " * (-len(head) % 8)
        start = memoryview(len(head).to_bytes(8, "little") + head)
        return self.download([start, *held], headers | {"Cache-Control": "no-cache"}, versions)

    def download(
        self, body: Sequence[memoryview], headers: dict[str, str], versions: list[tuple[ServedPart, Sent]]
    ) -> ModelDownload:
        """Return an answer that sends ``body``, which is memory of ``versions``. If the versions that are sent exceed
        ``reading`` bytes, downloads of other versions are ended."""
        transfer = Transfer(self.allowed(sum(map(len, body))))
        new = sum(served.nbytes for served, sent in versions if sent not in served.reading)
        while new and new + sum(served.nbytes * len(served.reading) for served in self.parts) > self.reading:
            others = [
                (served, sent) for served in self.parts for sent in served.reading if (served, sent) not in versions
            ]
            if not others:
                break
            served, sent = min(others, key=lambda other: max(reader.pace for reader in other[0].reading[other[1]]))
            for reader in served.reading.pop(sent):
                reader.cut()
        with contextlib.ExitStack() as stack:
            for served, sent in versions:
                stack.enter_context(served.counted(sent, transfer))
            return ModelDownload(body, headers, transfer, stack.pop_all())

    async def update(self, request: Request) -> Response:
        served, task = self.part(request), _whole(request.path_params["task"], "task")
        samples = _number(request.query_params.get("num_samples"), "num_samples")
        dtype = TYPES.get(request.headers.get("content-type", "").lower())
        if dtype is None:
            raise Refused(415, f"Content-Type: expected one of {', '.join(TYPES)}")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "Content-Encoding: expected none")
        if "content-length" not in request.headers:
            raise Refused(411, "Content-Length is needed")
        length, size = _whole(request.headers["content-length"], "Content-Length"), served.server.layout.size
        needed = size * dtype.itemsize if dtype is not torch.uint8 else min(length, largest(size))
        if length != needed:
            raise Refused(413 if length > needed else 400, f"expected {needed} bytes, got {length}")
        copy = _client(request, served.server), task
        # If a copy of this update is complete, wait until the server has taken or refused the copy. The server then
        # refuses this copy with AlreadyCounted, and the answer below has the outcome of the first.
        while (step := served.steps.get(copy)) is not None:
            await step.wait()
        if served.receiving >= self.uploads:
            slowest = min(served.uploads, key=lambda upload: upload.pace, default=None)
            if slowest is None or slowest.pace[0]:
                raise Refused(429, "too many updates at a time: send it again later")
            served.uploads.discard(slowest)
            slowest.cut()
        served.receiving += 1
        try:
            receipt: Receipt | errors.AlreadyCounted = await self.received(
                request, served, copy, samples, dtype, needed
            )
        except errors.AlreadyCounted as error:  # the client has not got its answer, so it gets the outcome again
            if error.version is None:  # the server no longer remembers the outcome
                raise
            receipt = error
            await run_in_threadpool(served.server.flush)  # the first copy may still wait for the disk
        finally:
            served.receiving -= 1
        self.look()
        return JSONResponse({"version": receipt.version, "applied": receipt.applied})

    async def received(
        self, request: Request, served: ServedPart, copy: Copy, samples: float | None, dtype: torch.dtype, needed: int
    ) -> Receipt:
        """Receive an update of ``needed`` bytes, and return its receipt. Chunks of about 1 MB are written in threads as
        they arrive, to the folder or, if the update is small, to memory. The server's step runs in a thread, too."""
        client, task = copy
        form: Plain = {"encoded": needed} if dtype is torch.uint8 else {"dtype": dtype}
        upload = await run_in_threadpool(served.server.receiving, client, None, samples, task=task, **form)
        stack, held, transfer = contextlib.ExitStack(), bytearray(), Transfer(self.allowed(needed))
        stack.enter_context(upload)
        try:
            async with transfer.timer:
                served.uploads.add(transfer)
                async for chunk in request.stream():
                    held += chunk
                    transfer.move(len(chunk))
                    if len(held) >= CHUNK:
                        await run_in_threadpool(upload.write, held)
                        held = bytearray()
                served.uploads.discard(transfer)
            with served.stepping(copy):
                await run_in_threadpool(upload.write, held)
                del held
                async with served.one if needed > SMALL else contextlib.nullcontext():
                    # With the shield, the step goes on to its end even if the connection is lost meanwhile.
                    await asyncio.shield(run_in_threadpool(stack.close))
        except BaseException as error:
            served.uploads.discard(transfer)
            stack.__exit__(type(error), error, error.__traceback__)
            if isinstance(error, TimeoutError):
                limit = f"{self.allowed(needed):.0f} s, or was the slowest of {self.uploads}"
                raise Refused(408, f"the update took longer than {limit}") from None
            raise
        return upload.receipt

    async def heartbeat(self, request: Request) -> Response:
        if not await self.is_newer(request, self.chosen(request)):
            return Response(status_code=204)
        tasks: Plain = {}
        for number, served in enumerate(self.parts):
            with contextlib.suppress(errors.UnknownVersion, errors.UnknownClient):
                version, task = served.server._engine.find(_client(request, served.server), None, None, None, None)
                tasks[str(number)] = {"version": version, "task": task}
        return JSONResponse({"version": self.version(self.parts), "open": tasks})

    async def which(self, request: Request) -> Response:
        return Response(self.layout, media_type="application/json")

    async def scraped(self, request: Request) -> Response:
        own = {
            "ready": ("Whether an update would be taken", [int(not await self.why())]),
            "disk_free_bytes": ("Room on the folder's disk", [shutil.disk_usage(self.folder).free]),
            "uploads": ("Updates on their way", [served.receiving for served in self.parts]),
            "downloads": ("Models on their way", [served.downloads for served in self.parts]),
        }
        text = await run_in_threadpool(self.metrics.text, own)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def health(self, request: Request) -> Response:
        """Answer whether this process can still work. If the thread of a server's log has ended, the status is 503, and
        the process must be restarted. Otherwise the status is 200, even if the disk is full."""
        ended = any(served.server._log is None or served.server._log.journal.ended for served in self.parts)
        why = await self.why()
        return JSONResponse({"version": self.version(self.parts), "open": not why, "why": why}, 503 if ended else 200)

    async def ready(self, request: Request) -> Response:
        why = await self.why()
        return PlainTextResponse(f"{why}\n", 503, LATER) if why else PlainTextResponse("ready\n")

    async def why(self) -> str:
        """Return the result of :meth:`unready`, called in a thread that only health checks use."""
        return await to_thread.run_sync(self.unready, limiter=self.own)

    def unready(self) -> str:
        """Return why an update would be refused: a log cannot be written, or the disk has too little room. Empty: an
        update would be taken."""
        try:
            for served in self.parts:
                served.server.flush()
        except errors.FastaggError as error:
            return str(error)
        needed = SPARE + 4 * max(served.server.layout.size for served in self.parts)
        return f"{self.folder}: the disk is full" if shutil.disk_usage(self.folder).free < needed else ""

    def part(self, request: Request) -> ServedPart:
        number = _whole(request.query_params.get("part", "0"), "part")
        if number >= len(self.parts):
            raise Refused(404, f"part: expected 0..{len(self.parts) - 1}, got {number}")
        return self.parts[number]

    def chosen(self, request: Request) -> list[ServedPart]:
        """Return the part that a request names. If the request names none, return all parts."""
        return [self.part(request)] if "part" in request.query_params else self.parts

    def incarnation(self, parts: Sequence[ServedPart]) -> str:
        """Return the incarnations that made the current versions of these parts, joined by "-"."""
        return "-".join(str(served.incarnation) for served in parts)

    def version(self, parts: Sequence[ServedPart]) -> int:
        """Return the sum of these parts' versions, which stands for the version of the whole model."""
        return sum(served.server.version for served in parts)

    async def is_newer(self, request: Request, parts: Sequence[ServedPart]) -> bool:
        """Wait for a version above the request's ``after``, at most ``wait`` seconds. Return whether there is such a
        version, and the client is still connected. Without ``after``, return True."""
        if (stated := request.query_params.get("after")) is None:
            return True
        after, seconds = _whole(stated, "after"), _number(request.query_params.get("wait", "0"), "wait")
        now, its = self.incarnation(parts), request.query_params.get("incarnation")
        if after > self.version(parts) or (after == self.version(parts) and its not in (None, now)):
            raise errors.StaleIncarnation(f"after: this server has no version {after}, or not that one: ask without it")
        until = time.monotonic() + min(max(seconds or 0.0, 0.0), LONGEST)
        while not (is_gone := await request.is_disconnected()) and self.version(parts) <= after:
            if (left := until - time.monotonic()) <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1.0)):  # after this time, check the client's connection again
                    await self._newer.wait()
        return self.version(parts) > after and not is_gone

    def look(self) -> None:
        """Wake the requests that wait for a newer version, if a server has made one since the last call."""
        if [served.seen for served in self.parts] != (now := [served.server.version for served in self.parts]):
            for served, version in zip(self.parts, now, strict=True):
                served.seen = version
            self._newer.set()
            self._newer = asyncio.Event()

    async def end_rounds(self) -> None:
        """End due rounds (:class:`fastagg.Buffer`) every second, in case no request comes that would end them."""
        while True:
            await asyncio.sleep(1.0)
            for served in self.parts:
                try:
                    await run_in_threadpool(served.server.close_round, if_due=True)
                except errors.FastaggError:  # the server has logged the error
                    pass
                except Exception as error:  # for example the system starts no more threads
                    _log.warning("a round that may be due could not be ended: %r", error)
            self.look()

    def allowed(self, nbytes: int) -> float:
        return self.seconds + nbytes / self.slowest


def _sent(server: Server, client: int | str, speed: float | None, format: str | None) -> Dispatch:
    """Return a task for the client. If the server refuses it with Busy, end the client's open tasks and try again,
    because a client with too many open tasks has lost them."""
    try:
        return server.dispatch(client, speed, format=format)  # type: ignore[arg-type]  # dispatch checks it
    except errors.Busy:
        with contextlib.suppress(errors.UnknownClient):
            server.forget(client)
            return server.dispatch(client, speed, format=format)  # type: ignore[arg-type]
        raise


def _view(array: torch.Tensor) -> memoryview:
    view: memoryview = array.reshape(-1).view(torch.uint8).numpy().data
    return view


def _layout(cut: PartList, servers: Sequence[Server]) -> Plain:
    """Return the content of ``/parts``. Its item ``parts`` has each part's parameters in order: name, offset in the
    whole model's vector, and shape. ``tied`` maps each further name of a tied parameter to its first name."""
    whole = {entry.name: entry.offset for entry in cut.layout.entries if entry.role == "parameter"}
    parts = [
        [[entry.name, whole[entry.name], list(entry.shape)] for entry in part.layout.entries if entry.name in whole]
        for part in cut
    ]
    first = {entry.offset: entry.name for entry in cut.layout.entries if entry.role == "parameter" and entry.size}
    tied = {entry.name: first[entry.offset] for entry in cut.layout.entries if entry.role == "alias" and entry.size}
    return {"size": cut.layout.size, "kind": servers[0].update_kind, "parts": parts, "tied": tied}


def _client(request: Request, server: Server) -> int | str:
    name = str(request.path_params["client"])
    # Starlette replaces bytes that are not UTF-8 by this character. So two different clients could get the same name.
    if "\ufffd" in name:
        raise Refused(400, "client: expected UTF-8")
    return int(name) if server.num_clients is not None and _is_whole(name) else name


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _whole(text: str, name: str) -> int:
    if not _is_whole(text):
        raise Refused(400, f"{name}: expected a whole number, got {text!r:.50}")
    return int(text)


def _number(text: str | None, name: str) -> float | None:
    try:
        number = None if text is None else float(text)
    except ValueError:
        number = math.nan
    if number is not None and math.isnan(number):  # no clock can wait for NaN seconds
        raise Refused(400, f"{name}: expected a number, got {text!r:.50}")
    return number
