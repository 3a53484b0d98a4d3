"""All operations on files that a durable server needs, in one class. Tests replace it by a disk that loses power."""

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
    """Files by number, as in the operating system. Every method raises OSError if the system refuses."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and those above it. They may exist."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        """Return the sorted names in a folder."""
        return sorted(os.listdir(path))

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or a folder with this name."""
        return path.exists()

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """Open an existing file. With ``create`` it may be new."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), 0o600)

    def close(self, file: int) -> None:
        """Close the file."""
        os.close(file)

    def size(self, file: int) -> int:
        """Return the file's size in bytes."""
        return os.fstat(file).st_size

    def allocate(self, file: int, size: int) -> None:
        """Reserve room for ``size`` bytes, so that writing there does not fail and a sync need not write metadata."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, max(size, self.size(file)))

    def truncate(self, file: int, size: int) -> None:
        """Set the file's size."""
        os.ftruncate(file, size)

    def write(self, file: int, buffers: Sequence[Any], offset: int) -> int:
        """Write all buffers, one after the other, at ``offset``. Return where they end."""
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
        """Read up to ``size`` bytes."""
        parts = []
        while size and (part := os.pread(file, min(size, 1 << 30), offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def view(self, file: int) -> Any:
        """Return the whole file as a buffer. The system reads its pages when they are used, and owns them."""
        size = self.size(file)
        return mmap.mmap(file, size, access=mmap.ACCESS_COPY) if size else b""

    def sync(self, file: int) -> None:
        """Wait until what was written to the file is on the disk."""
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the disk."""
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or folder. A file that had the new name is removed."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with its contents. It need not exist."""
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                for name in os.listdir(path):
                    self.remove(path / name)
                os.rmdir(path)
            else:
                os.unlink(path)

    def lock(self, path: Path) -> int | None:
        """Lock a file until this process ends, and return its number. None if somebody else has locked it."""
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
