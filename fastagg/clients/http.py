"""A client of the HTTP server in ``examples/http``: it repeats what is not answered, and an update counts once."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import time
import urllib.request
from email.message import Message
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urljoin

import torch
from torch import Tensor

from fastagg import _checks, errors

LATER = 408, 425, 429, 500, 502, 503, 504  # the same request may work later
TYPES = {torch.float32: "application/x-float32", torch.float16: "application/x-float16"}
LOST = errors.UnknownVersion, errors.UnknownClient  # the answer is too late, or the server has lost the task
LONGEST = 30.0  # seconds between two tries

Answered = tuple[Message, bytearray]


class HttpClient:
    """One client of a server of ``examples/http``. It needs torch alone.

    A request that is not answered is sent again: after half a second, then after twice as long each time, 30 seconds at
    most, or when the server says (``Retry-After``). An update carries its task's id, so it counts once, however often
    it is sent.

    Args:
        url: where the server is, such as ``https://fl.example.org``.
        client: this client's id.
        token: the server's token.
        num_samples: the client's number of samples, for a server with ``weighting="samples"``.
        patience: for how many seconds a request is repeated.
        timeout: how many seconds the server may be silent before a try counts as failed.

    Attributes:
        version: the version of the last task; None before the first.

    Example:
        >>> client = fastagg.clients.HttpClient("http://127.0.0.1:8000", "ann", "secret")
        >>> def work() -> None:
        ...     model = client.task()  # the flat model
        ...     client.send(torch.zeros_like(model))  # in place of zeros, what training has changed
    """

    def __init__(
        self, url: str, client: int | str, token: str, *, num_samples: float | None = None, patience: float = 600.0,
        timeout: float = 60.0,
    ) -> None:  # fmt: skip
        self._url, self._client, self._token = url.rstrip("/"), quote(str(client), safe=""), token
        self._samples = num_samples
        self._patience = _checks.number("patience", patience, least=0)
        self._timeout = _checks.number("timeout", timeout, above=0)
        self._open = urllib.request.build_opener(_Stay).open
        self._task: str | None = None
        self.version: int | None = None

    def task(self) -> Tensor:
        """Ask for a task. Return its model, [d], fp32.

        Raises:
            FastaggError: the server refuses, with the same error as :meth:`fastagg.Server.dispatch`.
            OSError: it refuses for another reason (the token), or does not answer for ``patience`` seconds.
        """
        headers, body = self._repeat(f"{self._url}/task/{self._client}")
        if "Location" in headers:  # somewhere else, where the token is not known
            body = self._repeat(urljoin(self._url, headers["Location"]), own=False)[1]
        self._task, self.version = headers["X-Task"], int(headers["X-Version"])
        return torch.frombuffer(body, dtype=torch.float32)

    def send(self, update: Tensor) -> dict[str, Any]:
        """Send the update of the last task. Return the receipt's ``version``, ``applied``, ``delay`` and ``durable``.

        Args:
            update: flat, [d], fp32 or fp16; other types are sent as fp32.

        Raises:
            UnknownVersion, UnknownClient: the task does not count any more. Ask for another one.
            FastaggError, OSError: as :meth:`task`; the server refuses as :meth:`fastagg.Server.receive` does.
        """
        if self._task is None:
            raise errors.UnknownVersion("send: there is no task; ask for one with task()")
        update = update.detach().reshape(-1).cpu()
        if update.dtype not in TYPES:
            update = update.float()
        where = f"{self._url}/update/{self._client}/{self._task}"
        if self._samples is not None:
            where += f"?num_samples={self._samples}"
        body: Any = update.contiguous().numpy()
        said = self._repeat(where, memoryview(body).cast("B"), TYPES[update.dtype])[1]
        found: dict[str, Any] = json.loads(said)
        return found

    def exchange(self, update: Tensor | None) -> Tensor:
        """Send an update, if there is one, and ask for the next task. What is too late to count is left out.

        This is what :func:`trainer_callback` and :func:`lightning_callback` call.
        """
        if update is not None:
            with contextlib.suppress(*LOST):
                self.send(update)
        return self.task()

    def _repeat(self, url: str, body: memoryview | None = None, kind: str = "", *, own: bool = True) -> Answered:
        """Send a request until it is answered."""
        until, pause = time.monotonic() + self._patience, 0.5
        headers = {"Content-Type": kind} if kind else {}
        if own:
            headers["Authorization"] = f"Bearer {self._token}"
        while True:
            wait = pause * random.uniform(0.5, 1.0)  # not all clients at the same time
            try:
                with self._open(urllib.request.Request(url, body, headers), timeout=self._timeout) as answer:
                    return answer.headers, bytearray(answer.read())
            except HTTPError as error:
                if error.code == 303 and own:
                    return error.headers, bytearray()
                failed: Exception = error
                if error.code not in LATER:
                    raise _named(error) from None
                if (asked := error.headers.get("Retry-After", "")).isdigit():
                    wait = max(wait, int(asked))
            except (OSError, http.client.HTTPException) as error:  # it is not there, or went away
                failed = error
            if time.monotonic() + wait > until:
                raise TimeoutError(f"{url}: no answer for {self._patience:g} seconds; the last try: {failed}")
            time.sleep(wait)
            pause = min(2 * pause, LONGEST)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Does not follow, because a task's headers are in the first answer, and the token is for its server alone."""

    def redirect_request(self, *given: Any) -> None:
        return None


def _named(error: HTTPError) -> Exception:
    """Return the server's own error, if it names one of ours."""
    text = error.read(10_000)
    try:
        said = json.loads(text)
        kind = getattr(errors, said["error"]) if said["error"] in errors.__all__ else None
    except (ValueError, TypeError, KeyError):
        kind = None
    if kind is None:
        return OSError(f"{error.url}: {error.code} {error.reason}: {text[:500].decode(errors='replace')}")
    found: Exception = kind(said["says"])
    return found
