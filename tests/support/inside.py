"""What tests look at inside of a server where nothing public shows it. They reach there by these functions only."""

from typing import Any

import numpy as np
from torch import Tensor

import fastagg
from fastagg._build import native
from fastagg.storage import memory


def engine(server: fastagg.Server) -> Any:
    return server._engine


def extension(server: fastagg.Server) -> Any:
    return server._running.extension


def direction(server: fastagg.Server) -> Any:
    """The state of its direction."""
    return extension(server).state


def weights(server: fastagg.Server) -> np.ndarray:
    """Of the clients' rows in the sum, [n]."""
    found: np.ndarray = direction(server).native.state()["weights"]
    return found


def row(server: fastagg.Server, client: int) -> Tensor | None:
    """A client's cached update, [d], in memory or on a disk; on a disk None if it has none."""
    state = direction(server)
    return row_in(state.cache, client) if state.rows is None else row_on_disk(state.rows, client)


def row_in(cache: fastagg.ClientCache, slot: int) -> Tensor:
    """A row of a cache in memory, [d]."""
    return fastagg.ops.read_row(cache, slot)


def row_on_disk(rows: Any, client: int) -> Tensor | None:
    """A client's row, [d], of a TieredRows; None if it has none."""
    place, format = int(rows.native.places[client]), rows.setting.format
    if place < 0:
        return None
    bits, is_scaled = native.row_formats[format]
    stride = native.engine.RowFile.stride(format, rows.size)
    with open(rows.folder / "rows.bin", "rb") as file:
        file.seek(place * stride)
        data, out = np.frombuffer(bytearray(file.read(stride)), np.uint8), memory.empty(rows.size)
    behind = -(-rows.size // 256) * 256 * bits // 8  # scales begin with a page
    scales = data.ctypes.data + -(-behind // 4096) * 4096 if is_scaled else 0
    there = native.Rows(format=format, size=rows.size, slots=1, data=data.ctypes.data, scales=scales)
    native.read_row(there, slot=0, out=out.data_ptr())
    return out


def sum_of(server: fastagg.Server) -> Tensor:
    """The sum over all clients' rows, [d]; not a copy."""
    found: Tensor = direction(server).sum
    return found


def open_tasks(server: fastagg.Server) -> int:
    return int(engine(server).open_tasks)


def known(server: fastagg.Server) -> int:
    """How many clients it remembers."""
    return int(engine(server).known)


def owed(server: fastagg.Server, client: int | str) -> list[int]:
    """The versions that a client has not answered."""
    return list(engine(server).owed(client))


def pass_time(server: fastagg.Server, seconds: float) -> None:
    """Let the clock of its tasks go on."""
    engine(server).skew += seconds


def log(server: fastagg.Server) -> Any:
    assert server._log is not None
    return server._log


def journal(server: fastagg.Server) -> Any:
    return log(server).journal


def is_watched(server: fastagg.Server) -> bool:
    return server._watch is not None
