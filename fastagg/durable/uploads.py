"""Updates that arrive in chunks and go to files of the server's folder. The step reads the file, and a record of the
log refers to it. So memory never holds more than one chunk."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable

import torch

from fastagg._build import native
from fastagg._types import Native
from fastagg.durable.disk import Disk
from fastagg.durable.folder import upload_name
from fastagg.errors import NotDurable, UnknownVersion
from fastagg.server.dispatch import Receipt
from fastagg.server.uploads import Upload
from fastagg.storage import raw
from fastagg.storage.pieces import DTYPES, Pieces, tensor_in

Task = tuple[int | str, int]  # client and version


class Uploads:
    """The uploads of one folder. What is done here is atomic in Python, so it needs no lock and may be interrupted.

    Args:
        recorded: files of uploads -> the record that refers to them.
        begin: the number of the next upload.
    """

    def __init__(self, recorded: dict[int, int], begin: int) -> None:
        self._recorded, self._numbers = recorded, itertools.count(begin)
        self._coming: dict[int, Native] = {}  # what no record referred to when somebody looked
        self._open: dict[Task, weakref.ref[StoredUpload]] = {}

    def begin(self, upload: StoredUpload, task: Task) -> int:
        """Return the number of a new upload. An older one for the same task ends, so that a client that has lost its
        connection can begin again, and many attempts hold one file."""
        before = self._open.get(task)
        self._open[task] = weakref.ref(upload, lambda gone: self._forget(task, gone))
        older = None if before is None else before()
        if older is not None:
            older.replace()
        return next(self._numbers)

    def _forget(self, task: Task, gone: object) -> None:
        if self._open.get(task) is gone:
            self._open.pop(task, None)

    def comes(self, number: int, blob: Native) -> None:
        """A record may refer to this upload soon."""
        self._coming[number] = blob

    def dropped(self, number: int) -> None:
        """No record will refer to it."""
        self._coming.pop(number, None)

    def recorded(self) -> dict[int, int]:
        """Return all uploads that a record refers to, with its number."""
        for number, blob in self._coming.copy().items():
            if blob.sequence:
                self._recorded[number] = blob.sequence
                self._coming.pop(number, None)
        return self._recorded.copy()

    def removed(self, number: int) -> None:
        """Its file is removed."""
        self._recorded.pop(number, None)


class StoredUpload(Upload):
    """An upload in a file of the folder. The file is made with the first chunk."""

    def __init__(
        self, size: int, dtype: torch.dtype | None, finish: Callable[[Pieces, Native], Receipt], disk: Disk,
        uploads: Uploads, task: Task,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, finish)
        self._disk, self._uploads = disk, uploads
        self._number = uploads.begin(self, task)
        self._name = upload_name(self._number)
        self._blob: Native = None
        self._replaced = False
        self._drops: Callable[[], object] | None = None  # removes the file, once, whoever asks for it

    def replace(self) -> None:
        """A newer upload has begun for the same task."""
        self._replaced = True
        if self._busy.acquire(blocking=False):  # otherwise whoever writes to it drops it
            try:
                self._drop()
            finally:
                self._busy.release()

    def _put(self, chunk: bytes) -> None:
        if self._replaced:
            raise UnknownVersion("upload: a newer one has begun for the same task; write to that one")
        if self._blob is None:
            self._begin()
        self._blob.crc = raw.crc32c([chunk], self._blob.crc)
        try:
            self._disk.write(self._blob.file, [chunk], self._at)
        except OSError as error:
            raise NotDurable(f"{self._disk.path / self._name}: {error}") from error

    def _begin(self) -> None:
        try:
            file = self._disk.open(self._name, create=True)
            self._disk.truncate(file, self._nbytes)
        except OSError as error:
            raise NotDurable(f"{self._disk.path / self._name}: {error}") from error
        self._blob = native.log.Blob(
            number=self._number, nbytes=self._nbytes, dtype=DTYPES.index(self._dtype), file=file
        )
        self._drops = weakref.finalize(self, _drop, self._disk, self._uploads, self._blob, self._name)
        self._drops.atexit = False  # the next opening removes it
        self._uploads.comes(self._number, self._blob)

    def _whole(self) -> tuple[Pieces, Native]:
        view = memoryview(self._disk.view(self._blob.file))
        return Pieces([tensor_in(view, self._dtype)]), self._blob

    def _drop(self) -> None:
        if self._drops is not None:
            self._drops()


def _drop(disk: Disk, uploads: Uploads, blob: Native, name: str) -> None:
    if blob.sequence:  # the update is in the model; the file stays, and the log closes it
        return
    uploads.dropped(blob.number)
    disk.close(blob.file)
    with contextlib.suppress(OSError):  # the server was closed meanwhile; the next opening removes the file
        disk.remove(name)
