"""What a server may have beside its model, as the server knows it: the log of a folder (fastagg/durable/log.py), and
who is told what happens (:func:`fastagg.watch`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import torch

from fastagg._types import Native, State
from fastagg.errors import FastaggError
from fastagg.server.dispatch import Client, Receipt
from fastagg.server.uploads import Refusing, Upload

Durability = Literal["none", "step", "arrival"]


class Log(Protocol):
    folder: Path
    durability: Durability
    journal: Native

    @property
    def pending(self) -> int: ...
    def flush(self) -> None: ...
    def checkpoint(self) -> Path: ...
    def whole_state(self) -> State: ...
    def upload(
        self, size: int, dtype: torch.dtype | None, encoded: int | None, task: tuple[Client, int],
        finish: Callable[..., Receipt], refusing: Refusing,
    ) -> Upload: ...  # fmt: skip
    def close(self) -> None: ...


class Watch(Protocol):
    def refused(self, error: FastaggError) -> None: ...
