"""A vector in memory that other processes of this host read in place."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor

from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.storage import files

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_MEMORY = Path("/dev/shm")
_MOST_MAPPED = 32


class SharedVector:
    """A vector that all processes of this host can read, for a sharded server's updates. It is not sent anywhere.

    It is a file in the host's memory, so any program can write it: ``size`` numbers one after the other. Write to it
    through :attr:`tensor` or the file, but not while the server reads it.

    Args:
        size: d, the size of the whole model.
        dtype: torch's float32, float16 or bfloat16.
        folder: the file's folder; by default ``/dev/shm`` or, if it does not exist, the folder for temporary files.

    Attributes:
        path: the file. It is removed with this object, or when :meth:`close` is called.
        tensor: the numbers, [size].

    Raises:
        ConfigError: there is no room for it, or a setting is out of range.

    Example:
        >>> update = fastagg.SharedVector(4)
        >>> update.tensor.fill_(0.5)
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(
        self, size: int, dtype: torch.dtype = torch.float32, *, folder: str | os.PathLike[str] | None = None
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype: expected float32, float16 or bfloat16, got {dtype}")
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"size: expected a whole number above 0, got {size!r}")
        where = folder if folder is not None else _MEMORY if _MEMORY.is_dir() else tempfile.gettempdir()
        try:
            file, self.path = tempfile.mkstemp(prefix="fastagg-", dir=where)
            self._remove = weakref.finalize(self, _remove, self.path)
            try:
                # Reserve all memory now, because a write to missing memory would kill the process.
                files.allocate(file, size * dtype.itemsize)
            finally:
                os.close(file)
        except OSError as error:
            raise ConfigError(f"a shared vector of {size * dtype.itemsize} bytes in {where}: {error}") from error
        self.size, self.dtype = size, dtype
        self.tensor = torch.from_file(self.path, shared=True, size=size, dtype=dtype)

    def close(self) -> None:
        """Remove the file. A process that has mapped it can still read it."""
        self._remove()


class Mapped:
    """Other processes' shared vectors that this process has mapped. Mapping again takes longer than reading a part."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int, torch.dtype], Tensor] = OrderedDict()

    def get(self, path: str, size: int, dtype: torch.dtype) -> Tensor:
        """Return the vector at ``path``.

        Raises:
            ShapeMismatch: it does not exist, or has another size.
        """
        for key in [key for key in self._held if not os.path.exists(key[0])]:
            del self._held[key]  # its memory is freed when the last process releases it
        try:
            found = os.stat(path)
        except OSError as error:
            raise ShapeMismatch(f"update: no shared vector at {path!r:.200}: {error.strerror}") from error
        if found.st_size != size * dtype.itemsize:
            raise ShapeMismatch(
                f"update: expected {size} numbers in {size * dtype.itemsize} bytes, got {found.st_size} bytes"
            )
        key = (path, found.st_ino, dtype)
        if key not in self._held:
            self._held[key] = torch.from_file(path, shared=True, size=size, dtype=dtype)
            while len(self._held) > _MOST_MAPPED:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return self._held[key]


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
