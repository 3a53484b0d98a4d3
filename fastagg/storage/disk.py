"""What a durable server asks of the file system, all of it: one small seam, which tests replace by a disk that loses
power."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_MOST_BUFFERS = 512  # of one call; the system's limit is 1,024


class Disk:
    """Files by number, as the operating system has them. Every method raises OSError where that refuses."""

    def make_folder(self, path: Path) -> None:
        """A folder, and those above it; it may be there."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """What a folder holds, sorted."""
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        """Whether there is a file or a folder of this name."""
        return path.exists()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """A file that is there, or with ``create`` may be new."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)

    def close(self, file: int) -> None:
        """The number is free again."""
        os.close(file)

    def size(self, file: int) -> int:
        """Bytes."""
        return os.fstat(file).st_size

    def allocate(self, file: int, size: int) -> None:
        """Room for so many bytes, so that writing there later neither fails nor changes what a sync must write."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, max(size, self.size(file)))

    def truncate(self, file: int, size: int) -> None:
        """The file has this size from now on."""
        os.ftruncate(file, size)

    def write(self, file: int, buffers: Sequence[Any], offset: int) -> int:
        """All of the buffers, one after the other, at ``offset``. Returns where they end."""
        left = [view for view in map(_bytes, buffers) if len(view)]
        while left:
            done = os.pwritev(file, left[:_MOST_BUFFERS], offset)
            offset += done
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]
        return offset

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes."""
        parts = []
        while size and (part := os.pread(file, min(size, 1 << 30), offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def view(self, file: int) -> Any:
        """The whole file as a buffer; its pages are read when they are looked at, and belong to the system."""
        size = self.size(file)
        return mmap.mmap(file, size, access=mmap.ACCESS_COPY) if size else b""

    def sync(self, file: int) -> None:
        """Until what was written to the file is on the disk."""
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)

    def sync_folder(self, path: Path) -> None:
        """Until the names in a folder are on the disk."""
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: Path, new: Path) -> None:
        """A file or folder takes another name, whose file goes."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """A file, or a folder with all that it holds; it may be gone already."""
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                for name in os.listdir(path):
                    self.remove(path / name)
                os.rmdir(path)
            else:
                os.unlink(path)

    def lock(self, path: Path) -> int | None:
        """The file's number, with a lock that ends with this process; None if somebody else has it."""
        file = self.open(path, create=True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        return file


def _bytes(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
