"""Uploads: updates that arrive in chunks (``Server.receiving``). An update is applied only when all of it has come and
was checked. Until then its chunks are in memory (HeldUpload), or in a file (fastagg/durable/uploads.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from types import TracebackType
from typing import Literal

import torch
from torch import Tensor

from fastagg.errors import Busy, DTypeMismatch, EncodingError, FastaggError, ShapeMismatch, UnknownVersion
from fastagg.server.dispatch import Receipt
from fastagg.storage import memory, raw
from fastagg.storage.encoded import HEADER, in_place, largest
from fastagg.storage.pieces import DTYPES

Refusing = Callable[[], AbstractContextManager[None]]  # makes a context that reports errors, such as Refusals below


class Refusals:
    """A context for a ``with`` block. If an error of fastagg ends the block, the context calls ``refused`` with the
    error, which is still raised. Otherwise it does nothing, so that the end of the block cannot fail without memory."""

    __slots__ = ("_refused",)

    def __init__(self, refused: Callable[[FastaggError], None]) -> None:
        self._refused = refused

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FastaggError):
            self._refused(error)


class Upload:
    """The result of :meth:`Server.receiving`: ``with server.receiving(client) as upload: upload.write(chunk)``.

    The bytes are those of the flat update, [d] numbers of ``dtype``, little endian, or of an encoded update. If the
    block ends without an error, the server takes the update as :meth:`Server.receive` does. Otherwise the update is
    dropped.

    Attributes:
        receipt: the outcome. It exists only after the server has taken the update.
        state: ``open``, ``complete`` (all bytes have come), ``taken`` (the server has or is taking the update) or
            ``dropped``.
    """

    receipt: Receipt
    state: Literal["open", "complete", "taken", "dropped"]

    def __init__(
        self, size: int, dtype: torch.dtype | None, finish: Callable[..., Receipt], refusing: Refusing = nullcontext,
        encoded: int | None = None,
    ) -> None:  # fmt: skip
        # Set to None at the end, because the function refers to the server.
        self._finish: Callable[..., Receipt] | None = finish
        self._refusing = refusing
        self._dtype = torch.float32 if dtype is None else dtype
        if self._dtype not in DTYPES:
            raise DTypeMismatch(f"dtype: expected torch's float32, float16 or bfloat16, got {dtype!r:.100}")
        self._nbytes, self._at = size * self._dtype.itemsize, 0
        self._expected = f"{self._nbytes} bytes ({size} numbers of {self._dtype})"
        if encoded is not None:
            if not HEADER <= encoded <= largest(size):
                raise EncodingError(f"encoded: expected {HEADER} to {largest(size)} bytes, got {encoded}")
            self._dtype, self._nbytes, self._expected = torch.uint8, encoded, f"{encoded} bytes"
        # One lock for each call of `write`, `__exit__` or `give_way`, locked while the call runs. Only the call with
        # the first locked lock may use the upload.
        self._turns: list[threading.Lock] = []
        self._is_replaced = False
        self.state = "open" if self._nbytes else "complete"

    def __enter__(self) -> Upload:
        return self

    def write(self, chunk: bytes | bytearray | memoryview) -> int:
        """Add a chunk of any length. An element of the update may be split between two chunks. Return how many bytes
        have come so far.

        Raises:
            ShapeMismatch: more bytes have come than were announced.
            NotDurable: the disk failed.
            Busy: another thread is writing to this upload.
            UnknownVersion: a newer upload has begun for the same task.
        """
        chunk = bytes(memoryview(chunk).cast("B"))  # copied, because another thread may write to the caller's buffer
        with self._refusing(), (turn := threading.Lock()):
            self._take(turn)
            self._refuse_replaced()
            if self.state in ("taken", "dropped"):
                raise ShapeMismatch("update: more bytes after its end")
            if self._at + len(chunk) > self._nbytes:
                raise ShapeMismatch(f"update: expected {self._expected}, got more")
            if chunk:
                self._put(chunk)
            self._at += len(chunk)
            if self._at == self._nbytes:
                self.state = "complete"
            return self._at

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._refusing(), (turn := threading.Lock()):
            self._take(turn)
            if error is None:
                self._refuse_replaced()
            if self.state in ("open", "complete"):
                self._end(error is None)

    def give_way(self) -> bool:
        """If this upload is open and no thread is writing to it, drop it, because a newer upload replaces it. Return
        whether this upload has ended. A complete upload is not dropped."""
        with (turn := threading.Lock()):
            if self.state == "complete" or not self._is_first(turn):
                return False
            if self.state == "open":
                self._is_replaced = True
                self._end(False)
            return self.state != "complete"

    def _refuse_replaced(self) -> None:
        if self._is_replaced:
            raise UnknownVersion("upload: a newer one has begun for the same task; write to that one")

    def _end(self, whole: bool) -> None:
        try:
            is_complete, self.state = self.state == "complete", "taken"
            if not whole:
                return
            if not is_complete:
                raise ShapeMismatch(f"update: expected {self._expected}, got {self._at}")
            assert self._finish is not None
            self.receipt = self._finish(*self._whole())
        finally:
            self._finish, self._refusing = None, nullcontext
            if not self._close():
                self.state = "dropped"

    def _is_first(self, turn: threading.Lock) -> bool:
        """Return whether no other call is using the upload. The caller's ``with`` statement locks and unlocks ``turn``,
        so an interrupt cannot leave ``turn`` locked."""
        if any(other.locked() for other in self._turns.copy()):
            return False
        self._turns.append(turn)
        if next(other for other in self._turns.copy() if other.locked()) is not turn:
            return False
        # This call has the first locked lock. The locks before it in the list are those of ended calls.
        del self._turns[: self._turns.index(turn)]
        return True

    def _take(self, turn: threading.Lock) -> None:
        if not self._is_first(turn):
            raise Busy("upload: another thread is writing to it; chunks come one after the other, from one thread")

    def _put(self, chunk: bytes) -> None:
        raise NotImplementedError

    def _whole(self) -> tuple[object, ...]:
        """Return the update as the arguments of ``finish``."""
        raise NotImplementedError

    def _close(self) -> bool:
        """Release the upload's memory or file. Return whether the server has taken the update."""
        return hasattr(self, "receipt")


class HeldUpload(Upload):
    """An upload in memory: any upload to a server without a folder, and a small upload to any server."""

    @cached_property
    def _held(self) -> Tensor:
        return memory.empty_bytes(self._nbytes)

    def _put(self, chunk: bytes) -> None:
        raw.at(self._held.data_ptr(), self._nbytes)[self._at : self._at + len(chunk)] = chunk

    def _whole(self) -> tuple[object, ...]:
        coded = self._dtype is torch.uint8
        return (in_place(self._held.numpy()) if coded else self._held.view(self._dtype),)
