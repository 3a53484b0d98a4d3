"""Functions on plain bytes, for files and uploads: a view of the memory at an address, and the checksum of buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from fastagg._build import native


def at(address: int, nbytes: int) -> memoryview:
    """Return a view of the ``nbytes`` bytes at an address. The caller must keep the owner of this memory alive."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")


def crc32c(buffers: Sequence[bytes | bytearray | memoryview | np.ndarray], before: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of consecutive buffers. ``before``: the checksum of earlier bytes. 0: none."""
    arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers if len(buffer)]
    if not arrays:
        return before
    # Each 1 is a placeholder, for a number of elements or a type code. crc32c uses only the addresses and `bytes`.
    update = native.Update([(array.ctypes.data, 1, 1) for array in arrays])
    return int(native.crc32c(update, bytes=[array.size for array in arrays], before=before, in_software=False))
