"""What may happen to rows on a disk: for the tests of servers whose rows are there."""

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def full_disk(bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def refusing(path: Path, what: str) -> Iterator[None]:
    """Whoever has the file ``path`` open in this process cannot ``read`` it, ``write`` to it or ``sync`` it."""
    held = [int(name) for name in os.listdir("/proc/self/fd") if _path_of(name) == str(path)]
    assert held, f"nobody has {path} open"
    kept = {file: os.dup(file) for file in held}  # with their locks
    ends = os.pipe()
    other = ends[0] if what == "sync" else os.open(path, {"read": os.O_WRONLY, "write": os.O_RDONLY}[what])
    for file in held:
        os.dup2(other, file)
    try:
        yield
    finally:
        for file, before in kept.items():
            os.dup2(before, file)
            os.close(before)
        for end in {*ends, other}:
            os.close(end)


def _path_of(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""


def damage(folder: Path, client: int, state: dict[str, Any], stride: int, place: int) -> None:
    """Change a byte of the client's row, at this place, in the rows of a server's ``state``."""
    at = int(state["direction"]["cache"]["slots"][client]) * stride + place
    with (folder / "rows.bin").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 16]))
        file.flush()
        os.fsync(file.fileno())


def in_page_cache(path: Path, place: int, nbytes: int) -> bool:
    """Whether all of these bytes of a file are in the system's page cache. ``place``: a multiple of a page."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as whole:
        view = ctypes.c_char.from_buffer(whole)
        pages = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()
        at = ctypes.c_void_p(ctypes.addressof(view) + place)
        found = ctypes.CDLL(None).mincore(at, ctypes.c_size_t(nbytes), pages)
        del view
    return found == 0 and all(page & 1 for page in pages)
