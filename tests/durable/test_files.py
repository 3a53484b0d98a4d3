"""File operations on systems that lack calls of Linux (macOS): what takes their place."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from fastagg.storage import files

FULL = 51  # fcntl.F_FULLFSYNC on macOS


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    for name in ("fdatasync", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(found, b"held")
    return found


@pytest.mark.parametrize("refused", [False, True])
def test_a_sync_reaches_the_disk_itself(file: int, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_FULLFSYNC where the system has it. fsync where it does not, or where the file system refuses."""
    calls: list[object] = []

    def asked(of: int, command: int) -> None:
        calls.append((of, command))
        if refused:
            raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(os, "fsync", calls.append)
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    files.sync(file)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", asked)
    files.sync(file)
    assert calls == [file, (file, FULL)] + [file] * refused


def test_room_is_reserved_behind_what_is_there(file: int) -> None:
    size = (1 << 20) + 7
    files.allocate(file, size)
    assert os.pread(file, size + 1, 0) == b"held" + bytes(size - 4)
    assert os.fstat(file).st_blocks * 512 >= size  # no hole
    files.allocate(file, 3)
    assert os.fstat(file).st_size == size
