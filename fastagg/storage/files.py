"""Operations on open files in which operating systems differ."""

from __future__ import annotations

import errno
import fcntl
import os


def allocate(file: int, size: int) -> None:
    """Reserve room for ``size`` bytes, so that writing there does not fail and a sync need not write metadata."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    held = os.fstat(file).st_size
    while held < size:
        held += os.pwrite(file, bytes(min(size - held, 1 << 20)), held)


def sync(file: int, *, names: bool = False) -> None:
    """Wait until a file's content is on the disk; with ``names``, those in a folder.

    As csrc/log/disk.cpp: on macOS a plain sync leaves the data in the disk's own cache.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(file, full)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
    (os.fsync if names else getattr(os, "fdatasync", os.fsync))(file)
