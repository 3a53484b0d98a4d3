"""Updates that arrive in chunks and go to files of the server's folder, to which a record of the log refers. While one
comes, memory holds one chunk of it. Its step reads the file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import weakref
from collections.abc import Callable, Iterator

import torch

from fastagg._build import native
from fastagg._types import Native
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import upload_name
from fastagg.errors import NotDurable, UnknownVersion
from fastagg.server.dispatch import Receipt
from fastagg.server.uploads import Refusing, Upload
from fastagg.storage import raw
from fastagg.storage.encoded import Encoded, in_place
from fastagg.storage.pieces import STREAMED, Pieces

Task = tuple[int | str, int]  # client and version


class Uploads:
    """The uploads of one folder. What is done here is atomic in Python, so it needs no lock and may be interrupted.

    Args:
        recorded: files of uploads -> the record that refers to them.
        begin: the number of the next upload.

    Attributes:
        refused: called when the disk has refused a part of one.
    """

    def __init__(self, recorded: dict[int, int], begin: int) -> None:
        self._recorded, self._numbers = recorded, itertools.count(begin)
        self._coming: dict[int, Native] = {}  # what no record referred to when somebody looked: its blob, or None yet
        self._open: dict[Task, weakref.ref[StoredUpload]] = {}
        self.refused: Callable[[], None] = lambda: None

    def begin(self, upload: StoredUpload, task: Task) -> int:
        """Return the number of a new upload. An older one for the same task ends, so that a client that has lost its
        connection can begin again, and many attempts hold one file."""
        before = self._open.get(task)
        self._open[task] = weakref.ref(upload, lambda gone: self._forget(task, gone))
        older = None if before is None else before()
        if older is not None:
            older.replace()
        return self.next()

    def next(self) -> int:
        """Return a number that no upload has, or had."""
        return next(self._numbers)

    def _forget(self, task: Task, gone: object) -> None:
        if self._open.get(task) is gone:
            self._open.pop(task, None)

    def comes(self, number: int, blob: Native = None) -> None:
        """A record may refer to this upload soon. It is said before there is a file."""
        self._coming[number] = blob

    def dropped(self, number: int) -> None:
        """No record will refer to it."""
        self._coming.pop(number, None)

    def recorded(self, after: int = 0) -> dict[int, int]:
        """Return all uploads that a record behind number ``after`` refers to, with its number."""
        for number, blob in self._coming.copy().items():
            if blob is not None and blob.sequence:
                self._recorded[number] = blob.sequence
                self._coming.pop(number, None)
        return {number: record for number, record in self._recorded.copy().items() if record > after}

    def needed(self, oldest: int) -> set[int]:
        """Return the uploads that are open, or that a record behind the ``oldest`` checkpoint refers to. All others
        may go: nobody asks for them any more."""
        coming = set(self._coming.copy())  # first: one that is recorded meanwhile is in both
        self._recorded = kept = self.recorded(oldest)
        return coming.union(kept)


class StoredUpload(Upload):
    """An upload in a file of the folder. The file is made with the first chunk."""

    def __init__(
        self, size: int, dtype: torch.dtype | None, finish: Callable[[Pieces | Encoded, Native], Receipt],
        refusing: Refusing, encoded: int | None, disk: Disk, uploads: Uploads, task: Task,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, finish, refusing, encoded)
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
        with self._naming():
            if self._blob is None:
                self._begin()
            self._disk.write(self._blob.file, [chunk], self._at)
        self._blob.crc = raw.crc32c([chunk], self._blob.crc)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            with named(self._disk.path / self._name, NotDurable):
                yield
        except NotDurable:
            self._uploads.refused()
            raise

    def _begin(self) -> None:
        made: list[Native] = []
        self._drops = weakref.finalize(self, _drop, self._disk, self._uploads, self._number, made)
        self._drops.atexit = False  # the next opening removes it
        self._uploads.comes(self._number)
        made.append(native.log.Blob(
            number=self._number, nbytes=self._nbytes, dtype=STREAMED[self._dtype],
            file=self._disk.open(self._name, create=True),
        ))  # fmt: skip
        self._uploads.comes(self._number, made[0])
        self._disk.truncate(made[0].file, self._nbytes)
        self._blob = made[0]

    def _whole(self) -> tuple[Pieces | Encoded, Native]:
        with self._naming():
            held = self._disk.read_tensor(self._blob.file, self._nbytes, 0)
            if len(held) != self._nbytes:
                raise OSError(errno.EIO, "the file became shorter")
        coded = self._dtype is torch.uint8
        return in_place(held.numpy()) if coded else Pieces([held.view(self._dtype)]), self._blob

    def _drop(self) -> None:
        if self._drops is not None:
            self._drops()


def _drop(disk: Disk, uploads: Uploads, number: int, made: list[Native]) -> None:
    if made and made[0].sequence:  # the update is in the model; the file stays, and the log closes it
        return
    uploads.dropped(number)
    for blob in made:
        with contextlib.suppress(OSError):
            disk.close(blob.file)
    with contextlib.suppress(OSError):  # the next checkpoint removes it, or the next opening
        disk.remove(upload_name(number))
