"""Encoded updates: updates in a small format, which clients send instead of arrays. Kernels read the bytes in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg._types import Arrays, Native
from fastagg.errors import EncodingError
from fastagg.storage import memory

HEADER = 64  # bytes of the header (csrc/math/wire.h)


def largest(size: int) -> int:
    """Return an upper bound on the bytes of an encoded update of ``size`` elements."""
    return 16 * size + 1024


class Encoded:
    """An update that :func:`fastagg.encode` made. Its bytes have been checked, and never change.

    A server takes this object in place of an update: ``server.receive(client, encoded)``. The object can be pickled.

    Attributes:
        format: ``bf16``, ``int8``, ``int4``, ``int8-tensor``, ``sign`` or ``topk``.
        size: d, the number of elements of the update.
        nbytes: the number of bytes that are sent.

    Example:
        >>> encoded = fastagg.encode(torch.tensor([0.5, -1.0, 0.25]), "sign", seed=0)
        >>> encoded.format, encoded.size, encoded.nbytes
        ('sign', 3, 132)
        >>> sorted(encoded.arrays())
        ['codes', 'header', 'scales']
        >>> fastagg.Encoded.from_bytes(encoded.to_bytes()).decode()
        tensor([ 0.5833, -0.5833,  0.5833])
    """

    __slots__ = ("native",)

    def __init__(self, native: Native) -> None:
        self.native = native

    @property
    def format(self) -> str:
        return str(self.native.format)

    @property
    def size(self) -> int:
        return int(self.native.size)

    @property
    def nbytes(self) -> int:
        return int(self.native.nbytes)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the encoded update as arrays by name, for frameworks that send arrays. The arrays are read-only and
        not copied. The array ``header`` describes the other arrays. docs/encoding.md has their types."""
        data = self.native.bytes
        arrays = {"header": data[:HEADER]}
        for name, kind, count, begin in self.native.arrays():
            arrays[name] = data[begin : begin + count * np.dtype(kind).itemsize].view("<" + kind)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Arrays] | Sequence[Arrays]) -> Encoded:
        """Make an encoded update from the result of :meth:`arrays`: a mapping by name, or a list in the same order. The
        arrays may be NumPy's or torch's, and are copied.

        Raises:
            EncodingError: an array is missing, has another type or length, or holds invalid values.
        """
        if isinstance(arrays, (list, tuple)) and arrays:  # some frameworks send arrays without names
            layout = native.encoding.layout(_bytes({"header": arrays[0]}, "header", "u1", HEADER))[1]
            names = ["header", *(name for name, *_ in layout)]
            arrays = dict(zip(names, arrays, strict=False)) if len(arrays) == len(names) else arrays
        if not isinstance(arrays, Mapping):
            raise EncodingError(_checks.wrong("arrays", "a mapping from names to arrays", arrays))
        header = _bytes(arrays, "header", "u1", HEADER)
        _, parts = native.encoding.layout(header)
        data_at = [(begin, _bytes(arrays, name, kind, count)) for name, kind, count, begin in parts]
        if extra := sorted(arrays.keys() - {"header", *(name for name, *_ in parts)}):
            raise EncodingError(f"encoded update: an array that its format does not have, {extra[0]!r}")
        whole: list[bytes | memoryview] = [header.data]
        at = HEADER
        for begin, data in data_at:
            whole += [bytes(begin - at), data.data]
            at = begin + data.size
        return cls(native.encoding.Encoded(b"".join(whole)))

    def to_bytes(self) -> bytes:
        """Return the whole encoded update as bytes."""
        return bytes(self.native.bytes)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview | np.ndarray) -> Encoded:
        """Make an encoded update from the bytes of :meth:`to_bytes`. ``bytes`` are not copied, because they cannot
        change. Other buffers are copied.

        Raises:
            EncodingError: the bytes are no encoded update.
        """
        try:
            return cls(native.encoding.Encoded(data))
        except TypeError:
            raise EncodingError(_checks.wrong("data", "bytes", data)) from None

    def decode(self) -> Tensor:
        """Return the update's numbers: fp32 [d], on the CPU."""
        out = memory.empty(self.size)
        self.native.decode(out.data_ptr())
        return out

    def __reduce__(self) -> tuple[object, ...]:
        return Encoded.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"<fastagg.Encoded {self.format}: {self.size} elements in {self.nbytes} bytes>"


def in_place(data: memoryview | np.ndarray) -> Encoded:
    """Return the encoded update in ``data``. The bytes are not copied, so the caller must not change them any more.
    EncodingError: they are no encoded update."""
    return Encoded(native.encoding.Encoded(data, own=True))


def _bytes(arrays: Mapping[str, Arrays], name: str, kind: str, count: int) -> np.ndarray:
    if name not in arrays:
        raise EncodingError(f"encoded update: its array {name!r} is missing")
    array = arrays[name]
    values = array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)
    if values.dtype != np.dtype("<" + kind) or values.size != count:
        raise EncodingError(
            f"encoded update: {name}: expected {count} numbers of {np.dtype(kind)}, got {values.size} of {values.dtype}"
        )
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
