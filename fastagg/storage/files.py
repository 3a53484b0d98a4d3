"""Operations on files for checkpoints, results and pictures: writing a file as a whole, syncing content and names, and
reserving room. They hide differences between operating systems and file systems."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fastagg.errors import CheckpointError, FastaggError


class OtherFormat(CheckpointError):
    """A file has a format that this version of fastagg cannot read. The file may be undamaged. Segments of the log
    cause the same message in csrc/log/segment.cpp."""

    def __init__(self, what: object, number: object, reads: int) -> None:
        super().__init__(f"{what}: it is of format {number!r}, and this version of fastagg reads format {reads}")


@contextlib.contextmanager
def named(what: Path | str, kind: type[FastaggError] = CheckpointError) -> Iterator[None]:
    """A context that raises an OSError of its ``with`` block as an error of class ``kind``, whose message begins with
    ``what``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FastaggError):
            raise
        raise kind(f"{what}: {error}") from error


def is_full(error: OSError) -> bool:
    """Return whether the error means that the volume, or a user's quota, has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def allocate(file: int, size: int) -> None:
    """Reserve room for the file's first ``size`` bytes, so that writing there does not fail and a sync need not write
    metadata. If there is not enough room for all bytes, raise OSError and leave the file as it was."""
    status = os.fstat(file)
    at = status.st_size
    try:
        if hasattr(os, "posix_fallocate"):
            if status.st_blocks * 512 < at:
                at = 0
            if at < size:  # only the missing bytes, because a full XFS refuses to reserve even blocks that the file has
                os.posix_fallocate(file, at, size - at)
            return
        while at < size:
            at += os.pwrite(file, bytes(min(size - at, 1 << 20)), at)
    except OSError:
        os.ftruncate(file, status.st_size)  # frees the reserved blocks
        raise


def write_in_place(folder: int) -> None:
    """Let later files in an open folder be overwritten in place. By default btrfs writes new bytes to new blocks."""
    with contextlib.suppress(OSError):  # other file systems lack the flag, and do not need it
        (flags,) = struct.unpack("l", fcntl.ioctl(folder, 0x80086601, bytes(8)))  # FS_IOC_GETFLAGS
        fcntl.ioctl(folder, 0x40086602, struct.pack("l", flags | 0x00800000))  # FS_IOC_SETFLAGS, FS_NOCOW_FL


def sync(file: int, *, names: bool = False) -> None:
    """Wait until a file's content is on the disk. ``names``: whether ``file`` is a folder, whose names are synced.

    On macOS, a plain fsync would leave the data in the disk's own cache. csrc/log/disk.cpp does the same."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(file, full)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                raise
    (os.fsync if names else getattr(os, "fdatasync", os.fsync))(file)


def sync_folder(path: Path | str, *, inside: int | None = None) -> None:
    """Wait until the names in a folder are on the disk. ``inside``: the open folder where ``path`` starts, or None."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=inside)
    try:
        sync(folder, names=True)
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, if they do not exist. Wait until their names are on the disk, even names that a
    killed process has made."""
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.absolute().parents:
        try:
            sync_folder(parent)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                raise
            return  # this process may not open the folder, so it has made no folder in it


@contextlib.contextmanager
def whole(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a new file for a ``with`` block. If the block ends without an error, the new file is synced and replaces
    ``path``. Otherwise ``path`` does not change. ``mode``: the new file's permissions. None: the system's default."""
    temporary = path.with_name(f"{path.name}{secrets.token_hex(4)}.partial")
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=0o666 if mode is None else 0o600)) as file:
            yield file
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            sync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write(path: Path, content: bytes) -> None:
    """Write a small file completely or not at all. When this returns, the file is on the disk."""
    with whole(path) as file:
        file.write(content)
