"""What tests look at inside of a server where nothing public shows it. They reach there by these functions only."""

from typing import Any

import numpy as np
from torch import Tensor

import fastagg


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


def row(server: fastagg.Server, client: int) -> Tensor:
    """A client's cached update, [d]."""
    return row_in(direction(server).cache, client)


def row_in(cache: fastagg.ClientCache, slot: int) -> Tensor:
    """A row of a cache, [d]."""
    return fastagg.ops.read_row(cache, slot)


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
