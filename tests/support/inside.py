"""What tests look at inside of a server where nothing public shows it. They reach there by these functions only."""

from __future__ import annotations

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


def row(server: fastagg.Server, client: int) -> Tensor | None:
    """A client's cached update, [d], in memory or on a disk; on a disk None if it has none."""
    state = direction(server)
    found: Tensor | None = (state.rows if hasattr(state, "rows") else state.cache).row(client)
    return found


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
