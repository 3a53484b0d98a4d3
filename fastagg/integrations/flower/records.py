"""Converts Flower's arrays, which are bytes of .npy files, to tensors and back. Also converts models and histories.

Reading copies an array only if its byte order is not the machine's. Bytes that are not an .npy file raise a named
error. The strategies call this module. Users may call :func:`read` and :func:`write`.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from tokenize import TokenError

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fastagg._types import Arrays, State
from fastagg.errors import DTypeMismatch, ShapeMismatch
from fastagg.server.server import Server

NUMPY = "numpy.ndarray"  # Flower's name for arrays in the bytes of .npy files
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_LONGEST_HEADER = 65_536

with warnings.catch_warnings():
    # torch warns once when a tensor is made on read-only bytes. This module never writes to such tensors.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def read(record: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return the tensors of an ArrayRecord by name. Do not write to these tensors, which share the record's memory.

    Unlike ``ArrayRecord.to_torch_state_dict`` this function makes no copies and supports bfloat16.

    Raises:
        ShapeMismatch: an array's bytes are not an .npy file, or do not fit the array's shape.
        DTypeMismatch: the record is not in Flower's NumPy format, or an array holds no numbers.
    """
    for name, array in record.items():
        if array.stype != NUMPY:
            raise DTypeMismatch(f"array {name!r}: expected {NUMPY} bytes, got {array.stype!r}")
    return {name: from_npy(array.data, array.dtype, f"array {name!r}") for name, array in record.items()}


def write(arrays: Mapping[str, Arrays] | Iterable[Arrays]) -> ArrayRecord:
    """Return an ArrayRecord of tensors or NumPy arrays. Arrays keep their dtypes. A list's names are "0", "1", ..."""
    if not isinstance(arrays, Mapping):
        arrays = {str(i): array for i, array in enumerate(arrays)}
    written = ((name, to_npy(array)) for name, array in arrays.items())
    return ArrayRecord({n: Array(dtype=kind, shape=to, stype=NUMPY, data=data) for n, (kind, to, data) in written})


def from_npy(data: bytes, dtype: str = "", label: str = "array") -> Tensor:
    """Return the tensor in the bytes of an .npy file. The tensor shares the bytes' memory if the byte order is native.
    ``dtype``: the dtype in Flower's record, because the file's header cannot name bfloat16. ``label``: the array's name
    in errors."""
    length = 10 + int.from_bytes(data[8:10], "little") if data[6:7] == b"\x01" else _LONGEST_HEADER
    try:
        shape, columns_first, kind, start = _header(data[:length])
    except (ValueError, LookupError, TypeError, SyntaxError, TokenError) as error:
        raise ShapeMismatch(f"{label}: these are not the bytes of an .npy file: {error}") from None
    # NumPy has no bfloat16. In a file, bfloat16 elements are two bytes without a type (V2).
    name = "bfloat16" if kind.str.endswith("V2") and dtype == "bfloat16" else kind.name
    theirs = getattr(torch, name, None)
    if not isinstance(theirs, torch.dtype):
        raise DTypeMismatch(f"{label}: expected numbers, got dtype {kind}")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or len(data) - start != count * kind.itemsize:
        raise ShapeMismatch(f"{label}: {list(shape)} of {kind} in {len(data) - start} bytes")
    if count == 0:
        return torch.empty(shape, dtype=theirs, device="cpu")
    if not kind.isnative:
        array = np.frombuffer(data, kind, count, start).astype(kind.newbyteorder("="))
        flat = torch.from_numpy(array)
    else:
        flat = torch.frombuffer(data, dtype=theirs, count=count, offset=start)
    return flat.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)) if columns_first else flat.view(shape)


@lru_cache(maxsize=4096)  # clients send equal headers, and parsing a header can take longer than adding its array
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    head = io.BytesIO(data)
    shape, columns_first, kind = _HEADERS[np.lib.format.read_magic(head)](head)
    return shape, columns_first, kind, head.tell()


def to_npy(array: Arrays) -> tuple[str, tuple[int, ...], bytes]:
    """Return the name of an array's dtype, the array's shape, and the bytes of an .npy file with the array."""
    if not isinstance(array, Tensor):
        array = np.ascontiguousarray(array)
        name, kind, shape, body = array.dtype.name, array.dtype.str, array.shape, array.reshape(-1).view(np.uint8)
    else:
        array = array.detach().cpu().contiguous()
        name, shape = str(array.dtype).removeprefix("torch."), tuple(array.shape)
        body = array.view(-1).view(torch.uint8).numpy()
        kind = "<V2" if name == "bfloat16" else np.dtype(name).str
    if name == "bfloat16":
        kind = "<V2"
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": tuple(shape)})
    return name, tuple(shape), b"".join((head.getvalue(), body.data))


def write_model(model: Arrays) -> ArrayRecord:
    """Return an ArrayRecord of a model in the form of ``server.parameters()``. Every array keeps its dtype."""
    return write([model] if isinstance(model, Tensor) else model)


def formed(server: Server, arrays: Arrays) -> Arrays:
    """Return a record's arrays in the form of the server's model, which may be a mapping, a list or one array."""
    form = server.layout.form
    if form in ("module", "state_dict") or not isinstance(arrays, Mapping):
        return arrays
    arrays = list(arrays.values())
    return arrays[0] if form == "flat" and len(arrays) == 1 else arrays


_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def history(result: Result) -> State:
    return {"history": {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in _HISTORY}}


def restore(result: Result, state: State) -> None:
    for name, rows in state.get("history", {}).items():
        getattr(result, name).update({number: MetricRecord(row) for number, row in rows.items()})
