"""The contents of a journal: one record for each change of a server's state, with all that is needed to replay it."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import CheckpointError
from fastagg.layout import Parsed
from fastagg.serving.dispatch import Client, Receipt
from fastagg.storage.pieces import Pieces, as_tensor

LIFE, DISPATCH, HAND_ON, ARRIVAL, CLOSE_ROUND, FORGET, RATE, EXPIRE, ROW = range(1, 10)
NAMES = {
    LIFE: "life", DISPATCH: "dispatch", HAND_ON: "hand_on", ARRIVAL: "arrival", CLOSE_ROUND: "close_round",
    FORGET: "forget", RATE: "lr", EXPIRE: "expire", ROW: "row",
}  # fmt: skip
ARRIVALS = ARRIVAL, ROW  # of an answer: its update as it came, or the encoded row that it became

_DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_PARAMETERS, _BUFFERS, _COUNTER, _CONTROL, _ROW, _UPDATES = range(6)
_FORMATS = tuple(native.row_formats)
_Read = TypeVar("_Read")
_WHOLE = struct.Struct("<Bqq")  # if the client is a number: the number and a version
_LARGE = struct.Struct("<BQq")  # if the client is a number of 2^63 and above
_NAMED = struct.Struct("<BHq")  # if the client is text: its length in bytes, and a version
_FACTS = struct.Struct("<dqBBqdddI")  # the facts about an arrival
_PIECE = struct.Struct("<BBQ")  # role, type, elements
_IN_FILE = 1 << 31  # a flag in the number of pieces: the update is in a file
_BLOB = struct.Struct("<QQIB")  # number, bytes, crc, type


@dataclass
class Row:
    """A client's encoded row: its codes, and right behind them its scales (csrc/math/rows.h)."""

    format: str
    data: np.ndarray  # uint8, shared with the record

    def largest(self) -> float:
        """Return a bound of the magnitudes. It is NaN or infinity if a number in the row is."""
        bits, scaled = native.row_formats[self.format]
        if not scaled:
            largest = (self.data.view(np.uint16) & 0x7FFF).max()  # the order of the bits is that of the magnitudes
            return float((largest.astype(np.uint32) << 16).view(np.float32))
        blocks = len(self.data) // (native.scale_block * bits // 8 + 4)
        scales = self.data[-4 * blocks :].view(np.float32)
        return float(np.abs(scales).max()) * (2 ** (bits - 1) - 1)


@dataclass
class Arrival:
    """One answer as it came, and the outcome."""

    client: Client
    version: int  # the version that it was trained from
    share: float
    parsed: Parsed
    control: Tensor | None = None
    blob: tuple[int, int, int, int] | None = None  # the file of an upload: number, bytes, checksum, type
    incarnation: int = 0  # the life of that version
    # applied, version afterwards, step size, weight, norm; None if the host did not know them (a device decides)
    decided: tuple[bool, int, float, float, float] | None = None
    row: Row | None = None  # what the update became; ``parsed`` then has no parameters
    updates: int | None = None  # of so many updates it is the sum, which has the weight ``share``


Piece = tuple[int, int, int]  # address, elements, type
Part = tuple[int, int, int, int]  # role, and a piece


def parts(parsed: Parsed, control: Tensor | None, updates: int | None) -> tuple[list[Piece], list[Part], list[Any]]:
    """Return where an answer's bytes are: its parameters, its other parts, and the objects that own the memory.

    ``updates``: of how many updates it is the sum, if a leaf sent it."""
    owners: list[Any] = [parsed, control]

    def here(pieces: Pieces) -> list[Piece]:
        if pieces.device.type == "cpu":
            return pieces.native  # they use the codes of the first types here
        found = [_host(owner) for owner in pieces.owners]
        owners.extend(found)
        return [(one.data_ptr(), one.numel(), _CODES[one.dtype]) for one in found]

    rest: list[Part] = []
    if parsed.buffers is not None:
        rest += [(_BUFFERS, *piece) for piece in here(parsed.buffers)]
    single = () if control is None else (control,)
    number = () if updates is None else (torch.tensor([updates]),)
    for role, tensors in ((_COUNTER, parsed.counters or ()), (_CONTROL, single), (_UPDATES, number)):
        for tensor in map(_host, tensors):
            owners.append(tensor)
            rest.append((role, tensor.data_ptr(), tensor.numel(), _CODES[tensor.dtype]))
    return here(parsed.parameters), rest, owners


def _host(owner: Any) -> Tensor:
    return as_tensor(owner).detach().cpu().contiguous()


def decided(receipt: Receipt) -> tuple[bool, int, float, float, float]:
    """Return a receipt's values in the form of a record."""
    lr = math.nan if receipt.step_size is None else receipt.step_size
    return receipt.applied, receipt.version, lr, receipt.weight, receipt.update_norm


def _named(read: Callable[[memoryview], _Read]) -> Callable[[memoryview], _Read]:
    """Turn every error from reading a record into a CheckpointError."""

    @functools.wraps(read)
    def reads(body: memoryview) -> _Read:
        try:
            return read(body)
        except (struct.error, LookupError, ValueError) as error:
            raise CheckpointError(f"a record that cannot be read: {error}") from error

    return reads


@_named
def read_client(body: memoryview) -> tuple[Client, int, int]:
    """Read a client and a version. Also return where they end."""
    if body[0] == 0:
        _, client, version = _WHOLE.unpack_from(body)
        return client, version, _WHOLE.size
    if body[0] == 2:
        _, client, version = _LARGE.unpack_from(body)
        return client, version, _LARGE.size
    _, length, version = _NAMED.unpack_from(body)
    end = _NAMED.size + length
    return bytes(body[_NAMED.size : end]).decode("utf-8", "surrogatepass"), version, end


@_named
def read_arrival(body: memoryview) -> Arrival:
    """Read an arrival as written by csrc/serving/records.cpp. Tensors are views of ``body``. Does not open an upload.

    Raises:
        CheckpointError: the record has another form.
    """
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
    found: dict[int, list[Tensor]] = {role: [] for role in range(6)}
    row: Row | None = None
    begin = at
    for role, code, elements in table:
        at += -(at - begin) % 8
        if role == _ROW:
            if elements > len(body) - at:
                raise ValueError("the record ends too early")
            row = Row(_FORMATS[code], np.frombuffer(body, np.uint8, elements, at))
            at += elements
            continue
        dtype = _DTYPES[code]
        found[role].append(tensor_at(body, at, dtype, elements))
        at += elements * dtype.itemsize
    buffers = Pieces(found[_BUFFERS]) if found[_BUFFERS] else None
    parsed = Parsed(Pieces(found[_PARAMETERS]), buffers, found[_COUNTER] or None)
    control = found[_CONTROL][0] if found[_CONTROL] else None
    said = (bool(applied), after, lr, weight, norm) if known else None
    updates = _number(found[_UPDATES]) if found[_UPDATES] else None
    return Arrival(client, version, share, parsed, control, blob, incarnation, said, row, updates)


def _number(parts: list[Tensor]) -> int:
    if len(parts) != 1 or parts[0].dtype != torch.int64 or parts[0].numel() != 1:
        raise ValueError("a sum's number of updates is not one whole number")
    return int(parts[0].item())


@_named
def read_rate(body: memoryview) -> float:
    """Read a learning rate."""
    return float(struct.unpack_from("<d", body)[0])


def life(first: int, number: int) -> bytes:
    """Return the body of a record: from the version ``first`` on the server's life has this number."""
    return struct.pack("<qq", first, number)


@_named
def read_life(body: memoryview) -> tuple[int, int]:
    """Inverse of :func:`life`."""
    first, number = struct.unpack_from("<qq", body)
    if first < 0 or number < 0:
        raise ValueError(f"expected a version and a life's number from 0 on, got {first} and {number}")
    return first, number


def code_of(dtype: torch.dtype) -> int:
    """Return the code of a type in records."""
    return _CODES[dtype]


def dtype_of(code: int) -> torch.dtype:
    """Inverse of :func:`code_of`."""
    return _DTYPES[code]


def tensor_at(body: Any, at: int, dtype: torch.dtype, elements: int) -> Tensor:
    """Return elements in a buffer as a tensor that shares them. Do not write to it."""
    if elements * dtype.itemsize > len(body) - at:
        raise ValueError("the record ends too early")
    if not elements:
        return torch.empty(0, dtype=dtype)
    array = np.frombuffer(body, np.uint8, elements * dtype.itemsize, at)
    if not array.flags.writeable:  # torch would warn, but nobody writes to it
        array = array.copy()
    return torch.from_numpy(array).view(dtype)


def same(a: Iterable[float], b: Iterable[float]) -> bool:
    """Return whether the numbers are equal. NaN equals NaN."""
    return all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))
