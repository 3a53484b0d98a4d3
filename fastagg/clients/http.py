"""A client of ``fastagg serve``, for users' client programs. The client repeats a request until the server answers. An
update still counts only once."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import math
import random
import re
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

import torch
from torch import Tensor

from fastagg import _checks, errors
from fastagg._types import Format
from fastagg.encoding import Encoded, ErrorFeedback, TopK, encode
from fastagg.encoding.encode import UNBIASED
from fastagg.storage import memory

LATER = 408, 425, 429, 500, 502, 503, 504  # after an answer with one of these statuses, the request is sent again
TYPES = {
    torch.float32: "application/x-float32", torch.float16: "application/x-float16",
    torch.bfloat16: "application/x-bfloat16",
}  # fmt: skip
ENCODED = "application/x-fastagg-encoded"
LOST = errors.UnknownVersion, errors.UnknownClient  # raised if an update is too late, or the server has lost the task
LONGEST = 30.0  # seconds: the longest pause between two tries, and the longest wait that a request asks for

Answered = tuple[Message, bytearray]
T = TypeVar("T")
_log = logging.getLogger("fastagg.clients")


class _Task(NamedTuple):
    id: str
    version: int
    incarnation: str | None = None  # the server's incarnation that made the version (Server.incarnation)


class HttpClient:
    """A client of ``fastagg serve``. This client needs no package except torch.

    A request without an answer is sent again. The first pause is at most half a second. This limit doubles with each
    pause, up to 30 seconds. The server may ask for a longer pause (``Retry-After``). An update is sent with its task's
    id, so the update counts at most once, however often it is sent. The logger ``fastagg.clients`` gets a warning about
    repeated requests, at most one warning in 30 seconds.

    A model in parts has a task and a version for each part. The parts are transferred at the same time.

    With a ``format``, the update of each part is encoded separately (:func:`fastagg.encode`). If a biased format leaves
    out some of an update that counts, the rest is added to the next update of this part.

    Args:
        url: the server's address, such as ``https://fl.example.org``. The environment variable
            ``SSL_CERT_FILE`` names a file of certificates to trust.
        client: this client's id.
        token: the client's token. Empty: the server needs no token.
        names: the names of the model's parameters, in the order of the client's vectors, such as
            ``dict(model.named_parameters())``. A tied parameter may have any of its names. None: the server's order.
        num_samples: the client's number of samples, for a server with ``weighting="samples"``. For ``"tokens"``, pass
            tokens*tokens/steps. None: no number is sent. The attribute of this name may be set before each update.
        format: the format in which updates are encoded. None: updates are not encoded.
        download: the format of the models in tasks: ``bf16`` (2 bytes a parameter) or ``int8`` (1.016 bytes), rounded
            without bias (:meth:`fastagg.Server.dispatch`). An update is then the difference from the rounded model.
            None: the models are not encoded.
        patience: the number of seconds for which a request is repeated.
        timeout: the number of seconds without a byte from the server after which a try fails.

    Raises:
        ConfigError: the address is no HTTP URL.

    Attributes:
        version: the sum of the parts' versions in the last tasks. None: there was no task yet.
        local_steps: the number of local steps that the server asks for. None: the server does not ask for a number.
        feedback: by part, the :class:`fastagg.ErrorFeedback` of the part's updates. Save them with the client's state.

    Example:
        >>> client = fastagg.clients.HttpClient("http://127.0.0.1:8000", "ann", "secret")
        >>> def work() -> None:
        ...     model = client.task()  # the flat model
        ...     client.send(torch.zeros_like(model))  # in place of zeros, what training has changed
    """

    def __init__(
        self, url: str, client: int | str, token: str = "", *, names: Iterable[str] | None = None,
        num_samples: float | None = None, format: Format | TopK | None = None,
        download: Literal["bf16", "int8"] | None = None, patience: float = 600.0, timeout: float = 60.0,
    ) -> None:  # fmt: skip
        if not re.match(r"https?://[^/]", url):
            raise errors.ConfigError(_checks.wrong("url", "an address such as http://127.0.0.1:8000", url))
        self._url, self._client, self._token = url.rstrip("/"), quote(str(client), safe=""), token
        self._names = None if names is None else list(names)
        self.num_samples, self._format, self._download = num_samples, format, download
        self.feedback: dict[int, ErrorFeedback] = {}
        self._patience = _checks.number("patience", patience, least=0)
        self._timeout = _checks.number("timeout", timeout, above=0)
        self._open = urllib.request.build_opener(_NoRedirects).open
        self._said = -math.inf  # the time of the last warning
        self._layout: dict[str, Any] | None = None
        self._tasks: dict[int, _Task] = {}  # the last task of each part
        self.local_steps: int | None = None

    @property
    def layout(self) -> dict[str, Any]:
        """The server's description of the model. ``size`` is d, and ``kind`` is ``delta`` or ``gradient``. ``parts`` is
        a list of arrays for each part. An array has a name, an offset in the client's vectors, and a shape.

        Raises:
            ShapeMismatch: the model has other arrays than ``names``.
        """
        if self._layout is None:
            layout: dict[str, Any] = json.loads(self._repeat("parts")[1])
            arrays = {array[0]: array for part in layout["parts"] for array in part}
            names = sorted(arrays, key=lambda name: arrays[name][1])
            if self._names is not None:
                names = list(dict.fromkeys(layout.get("tied", {}).get(name, name) for name in self._names))
            hint = "; if it is no parameter, start the server with --set 'buffers={%s=\"keep\"}'"
            for whose, alone in (("the server's", set(arrays) - set(names)), ("this", set(names) - set(arrays))):
                if alone:
                    do = "" if whose == "this" else hint % json.dumps(min(alone))
                    raise errors.ShapeMismatch(
                        f"names: only {whose} model has {min(alone)!r}, of {len(alone)} such{do}"
                    )
            at = 0
            for name in names:
                arrays[name][1], at = at, at + math.prod(arrays[name][2])
            self._layout = layout
        return self._layout

    @property
    def version(self) -> int | None:
        return sum(task.version for task in self._tasks.values()) if self._tasks else None

    def task(self, part: int | None = None, *, newer: bool = False, speed: float | None = None) -> Tensor:
        """Ask for a task. Return its model, [d], fp32.

        Args:
            part: the number of a part. Only this part's task is asked for, and its vector returned. None: all parts.
            newer: whether to wait for a newer version than the last task's. The first task comes without waiting.
            speed: the number of local steps that this client makes in a second, for a server with ``fastest_steps``.

        Raises:
            FastaggError: the server refuses, with the same error as :meth:`fastagg.Server.dispatch`.
            OSError: the server refuses for another reason, such as the token, or the server does not answer for
                ``patience`` seconds.
        """
        pieces = self._each(part, lambda number: self._pull(number, newer, speed))
        if part is not None:
            return pieces[0]
        whole = memory.empty(self.layout["size"])
        for number, piece in enumerate(pieces):
            places = self._places(number)
            for place, array in zip(
                places, piece.split([number.stop - number.start for number in places]), strict=True
            ):
                whole[place] = array
        return whole

    def send(self, update: Tensor | Encoded, part: int | None = None) -> dict[str, Any]:
        """Send the update of the last task. Return the receipt's ``version`` and ``applied``. With several parts,
        ``version`` is the sum of their versions, and ``applied`` tells whether at least one part's update was applied.

        Args:
            update: a flat update [d] in fp32, fp16 or bf16, or an encoded update of one part. Other types are sent as
                fp32.
            part: the part to which the update belongs. None: all parts. An encoded update needs a part, because it
                cannot be cut.

        Raises:
            UnknownVersion, UnknownClient: the server has ended the task. Ask for another task. With several parts, the
                updates of parts whose tasks are still open are taken.
            EncodingError: the update is encoded, and ``part`` is None.
            FastaggError, OSError: as in :meth:`task`. The server refuses with the errors of
                :meth:`fastagg.Server.receive`.
        """
        if isinstance(update, Encoded):
            if part is None:
                raise errors.EncodingError(
                    "send: an encoded update cannot be cut into parts, or put in the server's order: "
                    "encode each part's, send(encoded, part), or give HttpClient a format"
                )
            return self._push(part, update)
        whole = update.detach().reshape(-1).cpu()
        whole = whole if whole.dtype in TYPES else whole.float()

        def push(number: int) -> dict[str, Any]:
            return self._push(number, torch.cat([whole[p] for p in self._places(number)]) if part is None else whole)

        answers = self._each(part, push)
        return {
            "version": sum(said["version"] for said in answers),
            "applied": any(said["applied"] for said in answers),
        }

    def exchange(self, update: Tensor | None) -> Tensor:
        """Send an update, if there is one, and ask for the next task. Return the task's model, [d], fp32. If an update
        is too late, drop the update with a warning. If the server raises :class:`fastagg.TooSoon`, wait for the next
        version and try again. This method can be the ``exchange`` of :func:`trainer_callback`.

        Raises:
            TooSoon: the server still raises this error after ``patience`` seconds. Other errors are those of
                :meth:`task` and :meth:`send`.
        """
        if update is not None:
            try:
                self._in_time(lambda: self.send(update))
            except LOST as error:
                _log.warning("%s: an update was dropped: %s", self._url, error)
        return self._in_time(self.task)

    def _in_time(self, do: Callable[[], T]) -> T:
        """Return ``do()``. While this call raises TooSoon, repeat it at each new version of the part in the error."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return do()
            except errors.TooSoon as error:
                left = until - time.monotonic()
                if left < 0 or len(error.args) != 3:
                    raise
                _, part, version = error.args  # the server refuses as long as this version of the part is the newest
                asked = {"part": part, "after": version, "wait": min(LONGEST, left)}
            with contextlib.suppress(errors.StaleIncarnation):  # the server has been restarted
                self._repeat(f"heartbeat/{self._client}?{urlencode(asked)}", memoryview(b""))

    def resume(self) -> bool:
        """Take over this client's open tasks from the server. Return whether each part has an open task. A client that
        has kept its training's result calls this method after a restart."""
        said = json.loads(self._repeat(f"heartbeat/{self._client}", memoryview(b""))[1])
        self._tasks = {int(part): _Task(str(task["task"]), task["version"]) for part, task in said["open"].items()}
        return len(self._tasks) == len(self.layout["parts"])

    def _each(self, part: int | None, do: Callable[[int], T]) -> list[T]:
        """Return ``[do(part)]``. If ``part`` is None, return the results of all parts, each from its own thread."""
        parts: Sequence[int] = range(len(self.layout["parts"])) if part is None else (part,)
        if len(parts) == 1:
            return [do(parts[0])]
        with ThreadPoolExecutor(len(parts)) as pool:
            return list(pool.map(do, parts))

    def _places(self, part: int) -> list[slice]:
        return [slice(at, at + math.prod(shape)) for _, at, shape in self.layout["parts"][part]]

    def _pull(self, part: int, newer: bool, speed: float | None) -> Tensor:
        last = self._tasks.get(part)
        asked: dict[str, Any] = {"part": part, "speed": speed, "format": self._download}
        asked = {name: value for name, value in asked.items() if value is not None}
        wait: dict[str, Any] = {}
        if newer and last is not None:
            wait = {"after": last.version, "wait": LONGEST}
            wait |= {} if last.incarnation is None else {"incarnation": last.incarnation}
        until = time.monotonic() + self._patience
        while True:
            try:
                headers, body = self._repeat(f"task/{self._client}?{urlencode(asked | wait)}")
            except errors.StaleIncarnation:  # the server has lost the last task's version, so ask for any version
                if not wait:
                    raise
                wait = {}
                continue
            if "X-Task" in headers:
                break
            if time.monotonic() > until:
                raise TimeoutError(f"{self._url}: no version after {wait['after']} for {self._patience:g} seconds")
        self._tasks[part] = _Task(headers["X-Task"], int(headers["X-Version"]), headers["X-Incarnation"])
        self.local_steps = int(headers["X-Local-Steps"]) if "X-Local-Steps" in headers else None
        if headers["Content-Type"] == ENCODED:
            return Encoded.from_bytes(body).decode()
        in_bf16 = headers["Content-Type"] == TYPES[torch.bfloat16]  # otherwise the model is fp32
        return torch.frombuffer(body, dtype=torch.bfloat16 if in_bf16 else torch.float32).float()

    def _push(self, part: int, update: Tensor | Encoded) -> dict[str, Any]:
        if part not in self._tasks:
            raise errors.UnknownVersion("send: there is no task; ask for one with task()")
        asked = {"part": part} | ({} if self.num_samples is None else {"num_samples": self.num_samples})
        where = f"update/{self._client}/{self._tasks[part].id}?{urlencode(asked)}"
        feedback = before = None
        if self._format is not None and not isinstance(update, Encoded):
            if self._format not in UNBIASED:
                feedback = self.feedback.setdefault(part, ErrorFeedback())
                before = feedback.residual
            arrays = update.split([place.stop - place.start for place in self._places(part)])
            update = encode(arrays, self._format, seed=int(self._tasks[part].id), feedback=feedback)
        body: Any = (
            update.native.bytes if isinstance(update, Encoded) else update.contiguous().view(torch.uint8).numpy()
        )
        kind = ENCODED if isinstance(update, Encoded) else TYPES[update.dtype]
        try:
            receipt: dict[str, Any] = json.loads(self._repeat(where, memoryview(body), kind)[1])
        except BaseException as error:
            if feedback is not None:  # the client assumes that the update did not count
                feedback.residual = before
            if isinstance(error, LOST):  # forget the task, so that `newer` does not wait for a version above a lost one
                del self._tasks[part]
            raise
        return receipt

    def _repeat(self, path: str, body: memoryview | None = None, kind: str = "") -> Answered:
        """Send a request until the server answers. Return the answer's headers and body."""
        until, pause, url = time.monotonic() + self._patience, 0.5, f"{self._url}/{path}"
        headers = {"Content-Type": kind} if kind else {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        while True:
            wait = pause * random.uniform(0.5, 1.0)  # random, so that not all clients try at the same time
            try:
                request = urllib.request.Request(url, body, headers)
                with self._open(request, timeout=self._timeout) as answer:
                    return answer.headers, bytearray(answer.read())
            except HTTPError as error:
                failed: Exception = error
                if error.code not in LATER and (named := _named(error)) is not None:
                    raise named from None
                if (asked := error.headers.get("Retry-After", "")).isdigit():
                    wait = max(wait, int(asked))
            except (OSError, http.client.HTTPException) as error:  # the server is not reachable, or has disconnected
                failed = error
            if time.monotonic() + wait > until:
                raise TimeoutError(f"{url}: no answer for {self._patience:g} seconds; the last try: {failed}")
            if time.monotonic() > self._said + LONGEST:
                self._said = time.monotonic()
                _log.warning("%s: %s; trying for %.0f more seconds", url, failed, until - self._said)
            time.sleep(wait)
            pause = min(2 * pause, LONGEST)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, because the token must be sent to this server only."""

    def redirect_request(self, *request: Any) -> None:
        return None


def _named(error: HTTPError) -> Exception | None:
    """Return the server's error as an error of fastagg, or as OSError. None: the error's text did not arrive whole."""
    try:
        text = error.read(10_000)
        if len(text) < min(int(error.headers.get("Content-Length", 0)), 10_000):
            return None
    except (OSError, http.client.HTTPException):
        return None
    try:
        said = json.loads(text)
        kind = getattr(errors, said["error"]) if said["error"] in errors.__all__ else None
    except (ValueError, TypeError, KeyError):
        kind = None
    if kind is None:
        return OSError(f"{error.url}: {error.code} {error.reason}: {text[:500].decode(errors='replace')}")
    ours: Exception = kind(said["says"], *(said[more] for more in ("part", "version") if more in said))
    return ours
