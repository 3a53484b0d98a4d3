"""An update that arrives in pieces. It is not applied before it is complete and checked."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import DTypeMismatch, NotDurable, ShapeMismatch
from fastagg.layout import Parsed
from fastagg.serving import records
from fastagg.serving.dispatch import Receipt
from fastagg.storage import memory, raw
from fastagg.storage.disk import Disk
from fastagg.storage.pieces import Pieces

if TYPE_CHECKING:
    from fastagg.serving.snapshots import Keeper

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Upload:
    """The result of :meth:`Server.receiving`: ``with server.receiving(client) as upload: upload.write(chunk)``.

    The bytes are the flat update: [d] numbers of ``dtype``, little endian. If the block ends without an error, the
    server takes the update as :meth:`Server.receive` does. If it ends with an error, the update is dropped.

    Attributes:
        receipt: the outcome, after the block has ended.
    """

    receipt: Receipt

    def __init__(self, size: int, dtype: Any, finish: Callable[..., Receipt]) -> None:
        self._dtype = torch.float32 if dtype is None else dtype
        if self._dtype not in _DTYPES:
            raise DTypeMismatch(f"dtype: expected torch's float32, float16 or bfloat16, got {dtype!r:.100}")
        self._size, self._nbytes, self._at = size, size * self._dtype.itemsize, 0
        self._finish = finish
        self._done = False

    def __enter__(self) -> Upload:
        return self

    def write(self, chunk: bytes | bytearray | memoryview) -> int:
        """Add the next bytes, of any number. A number's bytes may be split between two chunks. Returns the bytes so
        far.

        Raises:
            ShapeMismatch: more bytes than the model has. NotDurable: the disk failed.
        """
        view = memoryview(chunk).cast("B")
        if self._done:
            raise ShapeMismatch("update: more bytes after its end")
        if self._at + len(view) > self._nbytes:
            raise ShapeMismatch(
                f"update: expected {self._nbytes} bytes ({self._size} numbers of {self._dtype}), got more"
            )
        self._put(view)
        self._at += len(view)
        return self._at

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done = True
        try:
            if error is None:
                if self._at != self._nbytes:
                    raise ShapeMismatch(
                        f"update: expected {self._nbytes} bytes ({self._size} numbers of {self._dtype}), got {self._at}"
                    )
                self._whole()
        finally:
            self._drop()

    def _put(self, view: memoryview) -> None:
        raise NotImplementedError

    def _whole(self) -> None:
        raise NotImplementedError

    def _drop(self) -> None:
        """Release what the upload holds."""


class HeldUpload(Upload):
    """An upload in memory, for a server without a folder."""

    def __init__(self, size: int, dtype: Any, finish: Callable[[Tensor], Receipt]) -> None:
        super().__init__(size, dtype, finish)
        self._held = self._room()
        self._bytes = raw.at(self._held.data_ptr(), self._nbytes)

    def _room(self) -> Tensor:
        """Return memory for the update, as bytes."""
        return memory.empty_bytes(self._nbytes)

    def _put(self, view: memoryview) -> None:
        self._bytes[self._at : self._at + len(view)] = view

    def _whole(self) -> None:
        self.receipt = self._finish(self._held.view(self._dtype))


class StoredUpload(Upload):
    """An upload in a file of the server's folder. The step reads the file, and a record of the journal refers to it.
    Only one chunk is in memory.

    Attributes:
        number: the number in the file's name.
        file: the open file.
    """

    def __init__(self, size: int, dtype: Any, finish: Callable[..., Receipt], disk: Disk, keeper: Keeper) -> None:
        super().__init__(size, dtype, finish)
        self.disk, self.keeper = disk, keeper
        self.number, self.path = keeper.new_upload()
        try:
            self.file = disk.open(self.path, create=True)
            disk.truncate(self.file, self._nbytes)
        except OSError as error:
            raise NotDurable(f"{self.path}: {error}") from error
        self._blob = native.serving.Blob(
            number=self.number, nbytes=self._nbytes, dtype=records.code_of(self._dtype), file=self.file
        )
        keeper.upload_comes(self.number, self._blob)

    def _put(self, view: memoryview) -> None:
        self._blob.crc = raw.crc32c([view], self._blob.crc)
        try:
            self.disk.write(self.file, [view], self._at)
        except OSError as error:
            raise NotDurable(f"{self.path}: {error}") from error

    def _whole(self) -> None:
        view = memoryview(self.disk.view(self.file))
        update = records.tensor_at(view, 0, self._dtype, self._size)
        self.receipt = self._finish(Parsed(Pieces([update]), None, None), self._blob)

    def _drop(self) -> None:
        if self._blob.sequence:  # the update is in the model; the file stays, and the journal closes it
            return
        self.keeper.upload_dropped(self.number)
        self.disk.close(self.file)
        self.disk.remove(self.path)
