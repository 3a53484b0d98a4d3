"""What may happen to rows on a disk: for the tests of servers whose rows are there."""

from __future__ import annotations

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
