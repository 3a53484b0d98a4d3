"""Updates that arrive in chunks. The chunks go to a file of the server's folder, and a record of the log refers to the
file. While an update arrives, memory holds one chunk. The update's step reads the file.

These rules hold for every upload that has a file, whatever connections, threads, interrupts and forks do:

1. An upload is first *open*, then *complete*. In the end it is either *taken* or *dropped*. A record refers to the file
   of a taken upload. Only the upload's own ``_end`` decides whether a complete upload is taken or dropped.
2. Only the upload knows its file's descriptor. The log does not know it. The file is closed once and in one place
   (:func:`_end`), when no thread reads or writes it any more.
3. A later copy of the same task's update replaces an open upload. If the earlier upload is complete, or a thread is
   writing to it, the later copy is refused and writes nothing.
4. A checksum proves that the server takes the bytes that arrived. They are on the disk before a record refers to them.
5. A file has all its blocks before the first byte is written. On a full volume the ``spare`` file is used, because a
   full XFS has no inode for a new file. A large file that no record needs becomes the next spare file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import weakref
from collections.abc import Callable, Iterator

import torch

from fastagg._build import native
from fastagg._types import Native
from fastagg.durable.disk import Disk, is_full, named
from fastagg.durable.folder import SPARE, upload_name
from fastagg.errors import Busy, NotDurable
from fastagg.server.dispatch import Receipt
from fastagg.server.uploads import Refusing, Upload
from fastagg.storage import raw
from fastagg.storage.encoded import Encoded, in_place
from fastagg.storage.pieces import STREAMED, Pieces

Task = tuple[int | str, int]  # client and version


class Uploads:
    """The uploads of one folder. Its operations are atomic in Python, so they need no lock and may be interrupted.

    Args:
        recorded: an upload's number -> the number of the record that refers to the upload.
        begin: the number of the next upload.

    Attributes:
        refused: a function that is called when the disk has refused an upload. The keeper then writes a checkpoint.
        is_full: whether the volume has no room. No upload then makes a file, so that freed room is left for the next
            checkpoint.
        spare: bytes of the spare file. 0: no spare file is kept.
    """

    def __init__(self, recorded: dict[int, int], begin: int) -> None:
        self._recorded, self._numbers = recorded, itertools.count(begin)
        # Uploads without a record: number -> the file's description for the log (a Blob), or None while it is open.
        self._coming: dict[int, Native] = {}
        self._last: weakref.WeakValueDictionary[Task, StoredUpload] = weakref.WeakValueDictionary()
        self.refused: Callable[[], None] = lambda: None
        self.is_full, self.spare = False, 0

    def begin(self, upload: StoredUpload, task: Task) -> None:
        """Note a new upload. An open upload for the same task is dropped, so that a client that has lost its connection
        can begin again. So a task never has two files."""
        earlier = self._last.get(task)
        if earlier is not None and not earlier.give_way():
            raise Busy("upload: another copy of this update is complete, or is written to: wait for its receipt")
        self._last[task] = upload

    def next(self) -> int:
        """Return a number that no upload has had before."""
        return next(self._numbers)

    def comes(self, number: int, blob: Native = None) -> None:
        """Note that a record may soon refer to this upload. Call this before the file is made."""
        self._coming[number] = blob

    def drop(self, number: int) -> bool:
        """Note that no record will refer to an upload. Return False if a record refers to it already."""
        blob = self._coming.get(number, self)
        if blob is self or (blob is not None and blob.sequence):
            return False
        self._coming.pop(number, None)
        return True

    def open(self, disk: Disk, number: int, nbytes: int) -> int:
        """Open the file of a new upload, and reserve its blocks. Return the descriptor."""
        name = upload_name(number)
        try:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            return _allocated(disk, name, nbytes)
        except OSError as error:
            self.refuse(error)
            with contextlib.suppress(FileNotFoundError):  # another upload has taken the spare file
                if self.is_full:
                    disk.rename(SPARE, name)
                    return _allocated(disk, name, nbytes)
            raise

    def refuse(self, error: OSError) -> None:
        """Note that the disk has refused a part of an upload, and tell the keeper. On a full volume, a checkpoint may
        free some room."""
        self.is_full = self.is_full or is_full(error)
        self.refused()

    def remove(self, disk: Disk, number: int) -> None:
        """Remove the file of an upload that is no longer needed. If the file is large enough, it becomes the spare
        file."""
        name = upload_name(number)
        if self.spare and disk.size_of(name) >= self.spare:
            try:
                return disk.rename(name, SPARE)
            except OSError as error:
                if not is_full(error):  # on a full volume, the new name may need a block
                    raise
        disk.remove(name)

    def recorded(self, after: int = 0) -> dict[int, int]:
        """Return the uploads to which records after number ``after`` refer: upload's number -> record's number."""
        for number, blob in self._coming.copy().items():
            if blob is not None and blob.sequence:
                self._recorded[number] = blob.sequence
                self._coming.pop(number, None)
        return {number: record for number, record in self._recorded.copy().items() if record > after}

    def needed(self, oldest: int) -> set[int]:
        """Return the numbers of the uploads that are open, or to which a record after the ``oldest`` checkpoint refers.
        All other files may be removed."""
        open_numbers = set(self._coming.copy())  # read first, so that an upload that is recorded meanwhile is not lost
        self._recorded = recorded = self.recorded(oldest)
        return open_numbers.union(recorded)


class StoredUpload(Upload):
    """An upload in a file of the folder. The file is made with the first chunk."""

    def __init__(
        self, size: int, dtype: torch.dtype | None, finish: Callable[[Pieces | Encoded, Native], Receipt],
        refusing: Refusing, encoded: int | None, disk: Disk, uploads: Uploads, task: Task,
    ) -> None:  # fmt: skip
        super().__init__(size, dtype, finish, refusing, encoded)
        self._disk, self._uploads, self._number = disk, uploads, uploads.next()
        self._name = upload_name(self._number)
        self._crc, self._has_begun = 0, False
        self._file: list[int] = []  # the descriptor, once the file is open
        # A finalizer runs only once, whoever calls it. The next opening removes files that a program leaves behind.
        self._ends = weakref.finalize(self, _end, disk, uploads, self._number, self._file)
        self._ends.atexit = False
        uploads.begin(self, task)

    def _put(self, chunk: bytes) -> None:
        with self._naming():
            if not self._file:
                self._has_begun = True
                self._uploads.comes(self._number)
                self._file.append(self._uploads.open(self._disk, self._number, self._nbytes))
            self._disk.write(self._file[0], [chunk], self._at)
        self._crc = raw.crc32c([chunk], self._crc)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        with named(self._disk.path / self._name, NotDurable):
            try:
                yield
            except OSError as error:
                self._uploads.refuse(error)
                raise

    def _whole(self) -> tuple[Pieces | Encoded, Native]:
        with self._naming():
            self._disk.sync(self._file[0])
            self._disk.sync_folder()
            self._disk.size_of(self._name)  # raises OSError if the file was removed
            data = self._disk.read_tensor(self._file[0], self._nbytes, 0)
            if raw.crc32c([data.numpy()]) != self._crc:
                raise OSError(errno.EIO, "other bytes are read than came")
        blob = native.log.Blob(number=self._number, nbytes=self._nbytes, crc=self._crc, dtype=STREAMED[self._dtype])
        self._uploads.comes(self._number, blob)
        coded = self._dtype is torch.uint8
        return in_place(data.numpy()) if coded else Pieces([data.view(self._dtype)]), blob

    def _close(self) -> bool:
        return self._ends() is False and self._has_begun


def _end(disk: Disk, uploads: Uploads, number: int, opened: list[int]) -> bool:
    """Close an upload's file. If no record refers to the file, remove it, and return True."""
    while opened:
        with contextlib.suppress(OSError):
            disk.close(opened.pop())
    is_dropped = uploads.drop(number)
    if is_dropped:
        with contextlib.suppress(OSError):  # the next checkpoint or the next opening removes the file
            uploads.remove(disk, number)
    return is_dropped


def _allocated(disk: Disk, name: str, nbytes: int) -> int:
    file = disk.open(name, create=True)
    try:
        disk.allocate(file, nbytes)
    except BaseException:
        disk.close(file)
        raise
    return file
