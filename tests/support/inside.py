"""What tests look at inside of a server where nothing public shows it. They reach there by these functions only."""

from typing import Any

from torch import Tensor

import fastagg


def engine(server: fastagg.Server) -> Any:
    return server._engine


def extension(server: fastagg.Server) -> Any:
    return server._running.extension


def direction(server: fastagg.Server) -> Any:
    """The state of its direction."""
    return extension(server).state


def row_in(cache: fastagg.ClientCache, slot: int) -> Tensor:
    """A row of a cache, [d]."""
    return fastagg.ops.read_row(cache, slot)


def known(server: fastagg.Server) -> int:
    """How many clients it remembers."""
    return int(engine(server).known)


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
