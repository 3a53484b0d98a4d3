"""Updates that arrive in chunks and go to files of the server's folder, to which a record of the log refers. While one
comes, memory holds one chunk of it. Its step reads the file.

What is guaranteed, for every upload that has a file, whatever connections, threads, interrupts and forks do:

1. It is *open*, then *complete*, and then *taken*, which means that a record refers to its file, or *dropped*. Only its
   own end takes or drops a complete one.
2. Its file is its own. Nobody else knows the descriptor, the log neither. It is closed in one place, once
   (:func:`_end`), when nobody writes to it or reads it any more.
3. A copy that comes later takes the place of an open one, for the same task. While that is complete, or a thread is
   writing to it, the later one is refused, and writes nothing.
4. What the server takes are the bytes that came, by their checksum. They are on the disk before a record refers to
   them.
5. A file has all its blocks before the first byte comes. On a full volume it is the file that was made ahead
   (``spare``), because a full XFS has no inode for a new one. A large file that no record needs is the next spare one.
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
    """The uploads of one folder. What is done here is atomic in Python, so it needs no lock and may be interrupted.

    Args:
        recorded: files of uploads -> the record that refers to them.
        begin: the number of the next upload.

    Attributes:
        refused: called when the disk has refused a part of one. The keeper writes a checkpoint.
        is_full: the volume has no room, so nobody makes a file: what is freed is for the next checkpoint.
        spare: bytes of the file that is made ahead. 0: there is none.
    """

    def __init__(self, recorded: dict[int, int], begin: int) -> None:
        self._recorded, self._numbers = recorded, itertools.count(begin)
        self._coming: dict[int, Native] = {}  # what no record referred to when somebody looked: its blob, or None yet
        self._last: weakref.WeakValueDictionary[Task, StoredUpload] = weakref.WeakValueDictionary()
        self.refused: Callable[[], None] = lambda: None
        self.is_full, self.spare = False, 0

    def begin(self, upload: StoredUpload, task: Task) -> None:
        """Note a new upload. An open one for the same task is dropped, so that a client that has lost its connection
        can begin again, and many attempts hold one file."""
        earlier = self._last.get(task)
        if earlier is not None and not earlier.give_way():
            raise Busy("upload: another copy of this update is complete, or is written to: wait for its receipt")
        self._last[task] = upload

    def next(self) -> int:
        """Return a number that no upload has, or had."""
        return next(self._numbers)

    def comes(self, number: int, blob: Native = None) -> None:
        """A record may refer to this upload soon. It is said before there is a file."""
        self._coming[number] = blob

    def drop(self, number: int) -> bool:
        """Say that no record will refer to an upload. Return whether that is so: one may do already."""
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
            with contextlib.suppress(FileNotFoundError):  # another upload has the spare file
                if self.is_full:
                    disk.rename(SPARE, name)
                    return _allocated(disk, name, nbytes)
            raise

    def refuse(self, error: OSError) -> None:
        """The disk has refused a part of an upload. A checkpoint may free some of a full one."""
        self.is_full = self.is_full or is_full(error)
        self.refused()

    def remove(self, disk: Disk, number: int) -> None:
        """Remove the file of an upload that nobody needs. One that is large enough becomes the spare one."""
        name = upload_name(number)
        if self.spare and disk.size_of(name) >= self.spare:
            try:
                return disk.rename(name, SPARE)
            except OSError as error:
                if not is_full(error):  # a new name may need a block
                    raise
        disk.remove(name)

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
        open_numbers = set(self._coming.copy())  # first: one that is recorded meanwhile is in both
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
        self._file: list[int] = []  # the descriptor, as soon as there is one
        # Called once, whoever does it. The next opening removes what a program leaves behind.
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
            self._disk.size_of(self._name)  # it is still there
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
    """Close an upload's file, and remove it if no record refers to it. Return whether none does."""
    while opened:
        with contextlib.suppress(OSError):
            disk.close(opened.pop())
    is_dropped = uploads.drop(number)
    if is_dropped:
        with contextlib.suppress(OSError):  # the next checkpoint removes it, or the next opening
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
