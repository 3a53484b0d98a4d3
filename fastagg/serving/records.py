"""What a journal says: one record for everything that changes a server's state, and what it takes to do it again."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import CheckpointError
from fastagg.layout import Parsed
from fastagg.serving.dispatch import Client, Receipt
from fastagg.storage import raw
from fastagg.storage.pieces import Pieces, as_tensor

LIFE, DISPATCH, HAND_ON, ARRIVAL, CLOSE_ROUND, FORGET, RATE, EXPIRE = range(1, 9)
NAMES = {
    LIFE: "life", DISPATCH: "dispatch", HAND_ON: "hand_on", ARRIVAL: "arrival", CLOSE_ROUND: "close_round",
    FORGET: "forget", RATE: "lr", EXPIRE: "expire",
}  # fmt: skip

_DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_PARAMETERS, _BUFFERS, _COUNTER, _CONTROL = range(4)
_WHOLE = struct.Struct("<Bqq")  # client is a number: that and a version
_NAMED = struct.Struct("<BHq")  # client is text of so many bytes, a version
_FACTS = struct.Struct("<dqBBqdddI")  # of an arrival
_PIECE = struct.Struct("<BBQ")  # role, type, elements
_IN_FILE = 1 << 31  # beside the number of pieces: the update is in a file
_BLOB = struct.Struct("<QQIB")  # number, bytes, crc, type


@dataclass
class Arrival:
    """One answer, as it came, and what was decided."""

    client: Client
    version: int  # that it was trained from
    share: float
    parsed: Parsed
    control: Tensor | None = None
    blob: tuple[int, int, int, int] | None = None  # an upload's file: number, bytes, checksum, type
    incarnation: int = 0  # of the version
    # applied, version afterwards, step size, weight, norm; None where nobody knows (an interrupt)
    decided: tuple[bool, int, float, float, float] | None = None
    waits: bool = False  # whether its sender waits for the disk
    entry: Any = None  # in the journal's queue
    held: list[Any] = field(default_factory=list)  # where its sender finds it
    parts: list[Any] = field(default_factory=list)  # the update's bytes where they lie
    owners: list[Any] = field(default_factory=list)
    table: list[tuple[int, int, int]] = field(default_factory=list)

    def gather(self) -> None:
        """Find the bytes, before anything has changed: it may fail."""
        if self.blob is None:
            self._add_pieces(_PARAMETERS, self.parsed.parameters)
        if self.parsed.buffers is not None:
            self._add_pieces(_BUFFERS, self.parsed.buffers)
        for counter in self.parsed.counters or ():
            self._add_tensor(_COUNTER, counter)
        if self.control is not None:
            self._add_tensor(_CONTROL, self.control)

    def _add_pieces(self, role: int, pieces: Pieces) -> None:
        if pieces.device.type != "cpu":
            for owner in pieces.owners:
                self._add_tensor(role, owner)
            return
        self.owners.append(pieces)
        for address, count, code in pieces.native:  # whose codes are those of the first types here
            self._add(role, code, count, raw.at(address, count * _DTYPES[code].itemsize))

    def _add_tensor(self, role: int, owner: Any) -> None:
        tensor = as_tensor(owner).detach().cpu().contiguous()
        self.owners.append(tensor)
        self._add(role, _CODES[tensor.dtype], tensor.numel(), raw.at(tensor.data_ptr(), tensor.nbytes))

    def _add(self, role: int, code: int, count: int, data: memoryview) -> None:
        if self.parts and (gap := -len(self.parts[-1]) % 8):
            self.parts.append(bytes(gap))
        self.table.append((role, code, count))
        self.parts.append(data)

    def decide(self, receipt: Receipt) -> None:
        """What :meth:`Server.receive` said."""
        lr = math.nan if receipt.step_size is None else receipt.step_size
        self.decided = receipt.applied, receipt.version, lr, receipt.weight, receipt.update_norm

    def encode(self) -> list[Any]:
        """The body of its record."""
        applied, version, *numbers = self.decided or (False, 0, 0.0, 0.0, 0.0)
        head = client_of(self.client, self.version) + _FACTS.pack(
            self.share, self.incarnation, 1 if self.decided else 0, int(applied), version, *numbers,
            len(self.table) | (_IN_FILE if self.blob else 0),
        )  # fmt: skip
        head += b"".join(_PIECE.pack(*row) for row in self.table)
        if self.blob:
            head += _BLOB.pack(*self.blob)
        return [head + bytes(-len(head) % 8), *self.parts]


def client_of(client: Client, version: int = -1) -> bytes:
    """A client and a version as bytes; :func:`read_client` reads them."""
    if isinstance(client, str):
        text = client.encode("utf-8", "surrogatepass")
        return _NAMED.pack(1, len(text), version) + text
    return _WHOLE.pack(0, client, version)


def read_client(body: memoryview) -> tuple[Client, int, int]:
    """A client, a version, and where they end."""
    if body[0] == 0:
        _, client, version = _WHOLE.unpack_from(body)
        return client, version, _WHOLE.size
    _, length, version = _NAMED.unpack_from(body)
    end = _NAMED.size + length
    return bytes(body[_NAMED.size : end]).decode("utf-8", "surrogatepass"), version, end


def read_arrival(body: memoryview) -> Arrival:
    """Inverse of :meth:`Arrival.encode`; the tensors are views of ``body``. An upload's update is not looked for.

    Raises:
        CheckpointError: it is no such record.
    """
    try:
        client, version, at = read_client(body)
        share, incarnation, known, applied, after, lr, weight, norm, count = _FACTS.unpack_from(body, at)
        at += _FACTS.size
        table = [_PIECE.unpack_from(body, at + i * _PIECE.size) for i in range(count & (_IN_FILE - 1))]
        at += len(table) * _PIECE.size
        blob = None
        if count & _IN_FILE:
            blob = _BLOB.unpack_from(body, at)
            at += _BLOB.size
        at += -at % 8
        found: dict[int, list[Tensor]] = {role: [] for role in range(4)}
        begin = at
        for role, code, elements in table:
            at += -(at - begin) % 8
            dtype = _DTYPES[code]
            found[role].append(tensor_at(body, at, dtype, elements))
            at += elements * dtype.itemsize
    except (struct.error, LookupError, ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"a record that cannot be read: {error}") from error
    buffers = Pieces(found[_BUFFERS]) if found[_BUFFERS] else None
    parsed = Parsed(Pieces(found[_PARAMETERS]), buffers, found[_COUNTER] or None)
    control = found[_CONTROL][0] if found[_CONTROL] else None
    decided = (bool(applied), after, lr, weight, norm) if known else None
    return Arrival(client, version, share, parsed, control, blob, incarnation, decided)


def rate(lr: float) -> bytes:
    """A learning rate as bytes."""
    return struct.pack("<d", lr)


def read_rate(body: memoryview) -> float:
    """Inverse of :func:`rate`."""
    return float(struct.unpack_from("<d", body)[0])


def life(first: int, number: int) -> bytes:
    """From a version on the server has a life of this number."""
    return struct.pack("<qq", first, number)


def read_life(body: memoryview) -> tuple[int, int]:
    """Inverse of :func:`life`."""
    first, number = struct.unpack_from("<qq", body)
    return first, number


def code_of(dtype: torch.dtype) -> int:
    """A type as records have it."""
    return _CODES[dtype]


def dtype_of(code: int) -> torch.dtype:
    """Inverse of :func:`code_of`."""
    return _DTYPES[code]


def tensor_at(body: Any, at: int, dtype: torch.dtype, elements: int) -> Tensor:
    """Elements that lie in a buffer, as a tensor that shares them: read it only."""
    if elements * dtype.itemsize > len(body) - at:
        raise ValueError("a record that ends too early")
    if not elements:
        return torch.empty(0, dtype=dtype)
    array = np.frombuffer(body, np.uint8, elements * dtype.itemsize, at)
    if not array.flags.writeable:  # torch would warn; nobody writes
        array = array.copy()
    return torch.from_numpy(array).view(dtype)


def same(a: Iterable[float], b: Iterable[float]) -> bool:
    """Equal, or both NaN."""
    return all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))
