"""Uploads in files: updates that arrive in chunks, which are written to a file of the server's folder. A record of the
log refers to the file. Until all chunks have come, memory holds one chunk. The update's step reads the file.

These rules hold for every upload that has a file, also with lost connections, many threads, interrupts and forks:

1. An upload is first *open*, then *complete*. In the end it is either *taken* or *dropped*. A record refers to the file
   of a taken upload. Only ``Upload._end`` decides whether a complete upload is taken or dropped.
2. The file's descriptor is in the upload only, not in the log. The file is closed once and in one place
   (:func:`_end`), when no thread reads or writes the file any more.
3. A later upload for the same task replaces an open upload. If the earlier upload is complete, or a thread is writing
   to it, the later upload is refused and writes nothing.
4. Before the server takes an update, a checksum shows that the file has the bytes that arrived. The file is on the disk
   before a record refers to it.
5. All blocks of a file are reserved before its first byte is written. On a full volume the ``spare`` file is used,
   because a full XFS has no inode for a new file. The next spare file is a large file that no record needs.
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

Task = tuple[int | str, int]  # a task's client and version


class Uploads:
    """The uploads of one folder. All changes of its dicts are atomic in Python, so its methods need no lock.

    Args:
        recorded: an upload's number -> the number of the record that refers to the upload.
        begin: the number of the next upload.

    Attributes:
        refused: a function that is called when the disk has refused an upload. Keeper sets it, and then writes a
            checkpoint.
        is_full: whether the volume has no room. While it is True, no upload makes a new file, so that room that becomes
            free is left for the next checkpoint.
        spare: bytes of the spare file. 0: no spare file is kept.
    """

    def __init__(self, recorded: dict[int, int], begin: int) -> None:
        self._recorded, self._numbers = recorded, itertools.count(begin)
        # Uploads whose record is not known yet: number -> the file's description for the log (a Blob). None: open.
        self._coming: dict[int, Native] = {}
        self._last: weakref.WeakValueDictionary[Task, StoredUpload] = weakref.WeakValueDictionary()
        self.refused: Callable[[], None] = lambda: None
        self.is_full, self.spare = False, 0

    def begin(self, upload: StoredUpload, task: Task) -> None:
        """Add a new upload. An open upload for the same task is dropped, so that a client that has lost its connection
        can begin again, and a task never has two files. Busy: the earlier upload is complete or in use."""
        earlier = self._last.get(task)
        if earlier is not None and not earlier.give_way():
            raise Busy("upload: another copy of this update is complete, or is written to: wait for its receipt")
        self._last[task] = upload

    def next(self) -> int:
        """Return a number that no upload has had before."""
        return next(self._numbers)

    def comes(self, number: int, blob: Native = None) -> None:
        """Keep the file of upload ``number``, because a record may soon refer to it. Call this before the file is made,
        and again with the ``blob`` when the file is complete."""
        self._coming[number] = blob

    def drop(self, number: int) -> bool:
        """Stop keeping the file of an upload. Return False if a record refers to it, or if there never was a file."""
        blob = self._coming.get(number, self)
        if blob is self or (blob is not None and blob.sequence):
            return False
        self._coming.pop(number, None)
        return True

    def open(self, disk: Disk, number: int, nbytes: int) -> int:
        """Open a new upload's file, or on a full volume the spare file, with its blocks. Return the descriptor."""
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
        """Tell the keeper that the disk has refused a part of an upload. A checkpoint may free room on the volume."""
        self.is_full = self.is_full or is_full(error)
        self.refused()

    def remove(self, disk: Disk, number: int) -> None:
        """Remove an upload's file that is no longer needed. A file that is large enough becomes the spare file."""
        name = upload_name(number)
        if self.spare and disk.size_of(name) >= self.spare:
            try:
                return disk.rename(name, SPARE)
            except OSError as error:
                if not is_full(error):  # a full volume may lack the block for the new name
                    raise
        disk.remove(name)

    def recorded(self, after: int = 0) -> dict[int, int]:
        """Return the uploads to which records above number ``after`` refer: upload's number -> record's number."""
        for number, blob in self._coming.copy().items():
            if blob is not None and blob.sequence:
                self._recorded[number] = blob.sequence
                self._coming.pop(number, None)
        return {number: record for number, record in self._recorded.copy().items() if record > after}

    def needed(self, oldest: int) -> set[int]:
        """Return the numbers of the uploads that are open, or to which a record above number ``oldest`` refers. All
        other uploads' files may be removed. ``oldest``: the number of the oldest checkpoint."""
        open_numbers = set(self._coming.copy())  # read before `recorded`, which moves uploads out of `_coming`
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
        # A finalizer runs at most once. It does not run at exit: the next opening removes the file then.
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
    """Close an upload's file, whose descriptor is in ``opened``. If no record refers to the file, remove the file.
    Return whether no record refers to it."""
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
