"""Memory as bytes: where it lies, and its checksum."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastagg._build import native


def at(address: int, nbytes: int) -> memoryview:
    """The bytes at an address; whoever asks keeps their owner alive."""
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B") if nbytes else memoryview(b"")


def crc32c(buffers: Sequence[Any], before: int = 0) -> int:
    """CRC-32C (Castagnoli) of buffers, one after the other, after ``before``."""
    arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers if len(buffer)]
    if not arrays:
        return before
    # The elements' type is not looked at: bytes are what counts.
    update = native.Update([(array.__array_interface__["data"][0], 1, 1) for array in arrays])
    return int(native.crc32c(update, bytes=[array.size for array in arrays], before=before, in_software=False))
