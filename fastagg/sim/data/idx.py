"""IDX, the format of MNIST's own files: two zero bytes, a type, the number of axes, their lengths, the values."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from fastagg.errors import DataError
from fastagg.sim.data.files import read_bytes

UNSIGNED_BYTE = 8


def find(folder: Path, name: str) -> Path | None:
    """Return FOLDER/NAME, FOLDER/NAME.gz, or NAME with ".idx" instead of "-idx". None if none of them exists."""
    head, _, tail = name.rpartition("-idx")
    for candidate in (name, f"{name}.gz", f"{head}.idx{tail}"):
        if (folder / candidate).is_file():
            return folder / candidate
    return None


def read(path: Path) -> np.ndarray:
    """Return the uint8 array in ``path`` (gzip by its ending). DataError if it is damaged or has another type."""
    data = read_bytes(path)
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not a readable gzip file: {error}") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE:
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    axes = data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise DataError(f"{path} is cut off in its header")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", axes, 4))
    expected = start + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        raise DataError(f"{path} has {len(data)} bytes, its header {shape} needs {expected}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
