"""The operations on files that fastagg/durable needs, in one class. Tests replace this class by a simulated disk that
can lose power."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from fastagg._build import native
from fastagg.storage import files, memory
from fastagg.storage.files import is_full as is_full
from fastagg.storage.files import named as named

Bytes = bytes | bytearray | memoryview
_MOST_BUFFERS = 512  # the most buffers in a system call. The system's limit is 1,024.


class Disk:
    """The files of one folder. ``name`` is the name of a file in the folder, and ``file`` an open file's descriptor.

    This object keeps the folder open, and looks up names in the open folder. So another folder that later has the same
    path is never used. A method raises OSError if the system refuses its operation. In a forked child, methods that
    write or look up a name always raise OSError, because the files belong to the parent process.

    Attributes:
        path: the folder's path, for messages.
        descriptor: the open folder's descriptor. None: the folder is closed, or this is a test's simulated disk. The
            compiled log then calls the methods of this object.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path, self._process = path, os.getpid()
        self._lock: io.FileIO | None = None
        if create:
            files.make_folder(path)
        self.descriptor: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        native.log.keep_from_children(self.descriptor)
        if create:
            files.write_in_place(self.descriptor)

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Unlock and close the folder. This object cannot be used any more."""
        self.unlock()
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            native.log.share(descriptor)
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def make_folder(self, name: str) -> None:
        """Create a folder in this folder, unless it exists."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=self._here())

    def names(self) -> list[str]:
        """Return the sorted names in the folder."""
        # The folder is opened again, because on btrfs an old descriptor lists the names from when it was opened.
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._here())
        try:
            return sorted(os.listdir(folder))
        finally:
            os.close(folder)

    def open(self, name: str, *, create: bool = False, write: bool = True) -> int:
        """Open a regular file for reading, and, if ``write``, also for writing. ``create``: whether to make a missing
        file. Return the descriptor."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        # If a pipe has this name, O_NONBLOCK keeps the call from waiting for the pipe's other end.
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(name, flags, 0o600, dir_fd=self._here())
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is there, and no regular file", name)
        return file

    def close(self, file: int) -> None:
        os.close(file)

    @contextlib.contextmanager
    def opened(self, name: str, *, create: bool = False, write: bool = True) -> Iterator[int]:
        """Open a file, as :meth:`open` does, and close it at the end of a ``with`` block."""
        file = self.open(name, create=create, write=write)
        try:
            yield file
        finally:
            self.close(file)

    def put(self, name: str, buffers: Sequence[Bytes]) -> None:
        """Write a whole file, and wait until its content is on the disk. An existing file is written over."""
        with self.opened(name, create=True) as file:
            self.truncate(file, self.write(file, buffers, 0))
            self.sync(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def size_of(self, name: str) -> int:
        """Return a file's size in bytes, by its name."""
        with self.opened(name, write=False) as file:
            return self.size(file)

    def allocate(self, file: int, size: int) -> None:
        """Reserve room for the file's first ``size`` bytes, as :func:`fastagg.storage.files.allocate` does."""
        files.allocate(file, size)

    def free(self) -> int:
        """Return how many free bytes the file system has for this process."""
        volume = os.fstatvfs(self._here())
        return volume.f_bavail * volume.f_frsize

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def write(self, file: int, buffers: Sequence[Bytes], offset: int) -> int:
        """Write all buffers, one after the other, at ``offset``. Return the offset of the end of the last one."""
        self._check_process()
        left = [view for view in map(_bytes, buffers) if len(view)]
        while left:
            done = os.pwritev(file, left[:_MOST_BUFFERS], offset)
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]
        return offset

    def read_into(self, file: int, view: memoryview, offset: int) -> int:
        """Read bytes from ``offset`` on until the view is full or the file ends. Return their number. Files are not
        mapped into memory, because an unreadable page of a mapped file ends the process. A read raises OSError."""
        done = 0
        while done < len(view) and (count := os.preadv(file, [view[done : done + (1 << 30)]], offset + done)):
            done += count
        return done

    def read(self, file: int, size: int, offset: int) -> bytearray:
        """Read ``size`` bytes from ``offset`` on, or fewer if the file ends before."""
        data = bytearray(size)
        with memoryview(data) as view:
            done = self.read_into(file, view, offset)
        del data[done:]
        return data

    def read_tensor(self, file: int, size: int, offset: int) -> Tensor:
        """Read bytes as :meth:`read` does, into a 1-D uint8 tensor. Its memory may have huge pages."""
        data = memory.empty_bytes(size, recycle=False)
        return data[: self.read_into(file, data.numpy().data, offset)]

    def read_of(self, name: str) -> bytearray:
        """Read a whole file, by its name."""
        with self.opened(name, write=False) as file:
            return self.read(file, self.size(file), 0)

    def sync(self, file: int) -> None:
        """Wait until all bytes that were written to the file are on the disk."""
        files.sync(file)

    def sync_folder(self, name: str = ".") -> None:
        """Wait until the names in the folder are on the disk. With ``name``, wait for the names in the subfolder."""
        files.sync_folder(name, inside=self._here())

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder. A file that had the new name is removed."""
        os.rename(old, new, src_dir_fd=self._here(), dst_dir_fd=self._here())

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its files, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self._here())
            except (IsADirectoryError, PermissionError):
                folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._here())
                try:
                    for inside in os.listdir(folder):
                        self.remove(f"{name}/{inside}")
                finally:
                    os.close(folder)
                os.rmdir(name, dir_fd=self._here())

    def lock(self, name: str) -> bool:
        """Lock the folder, and the file ``name`` in it, until :meth:`unlock` or the end of this process. Its forked
        children do not keep the lock. Return False if another object or process has the lock."""
        # FileIO calls `opener` and owns the descriptor at once, so that an interrupt leaves no open file without owner.
        self._lock = io.FileIO(name, "r+", opener=lambda *_: self.open(name, create=True))
        native.log.keep_from_children(self._lock.fileno())
        try:
            for file in (self._here(), self._lock.fileno()):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Release the lock, if this object has it."""
        if self._lock is None:
            return
        if os.getpid() == self._process:
            for file in (None if self._lock.closed else self._lock.fileno(), self.descriptor):
                if file is not None:
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_UN)
        if not self._lock.closed:
            native.log.share(self._lock.fileno())
        with contextlib.suppress(OSError):
            self._lock.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise OSError(errno.EPERM, "the folder is open in the process that this one is a fork of", str(self.path))

    def _here(self) -> int:
        self._check_process()
        if self.descriptor is None:
            raise OSError(errno.EBADF, "the folder is closed", str(self.path))
        return self.descriptor


def _bytes(buffer: Bytes) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
