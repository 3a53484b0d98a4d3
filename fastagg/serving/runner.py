"""Where a server's kernels run: on the processor, or on a CUDA device. Others are refused (storage/devices.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg.ops.place import CPU, place, where
from fastagg.storage.cache import ClientCache
from fastagg.storage.staging import send


def on_host(device: torch.device) -> bool:
    """Whether kernels on ``device`` are the processor's own."""
    return place(device) is CPU


def runner_for(device: torch.device) -> tuple[Any, Calls | None]:
    """The native runner, and what it calls in Python, if anything."""
    if on_host(device):
        return native.serving.OnCpu(), None
    calls = Calls(device)
    return native.serving.InPython(calls), calls


class Calls:
    """The kernels' launches on a CUDA device and its current stream.

    Attributes:
        verdict: what the next launches obey (:func:`fastagg.ops.judge`); None for nothing.
        cache, sum, scrub: the direction's rows, their sum and what keeps it, where there are any.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.verdict: Tensor | None = None
        self.cache: ClientCache | None = None
        self.sum: Tensor | None = None
        self.scrub: Any = None

    def __call__(self, name: str, *arguments: Any) -> None:
        getattr(self, "_" + name)(*arguments)

    def _where(self) -> Any:
        on = place(self.device)
        assert on is not None
        return where(on, self.verdict)

    def _step(self, update: Any, direction: Any, optimizer: Any) -> None:
        native.cuda.step(update, direction, optimizer, self._where())

    def _accumulate(self, update: Any, acc: int, weight: float, out: int) -> None:
        native.cuda.accumulate(update, acc=acc, weight=weight, out=out, where=self._where())

    def _recompute_sum(self, weights: Any, sum: int) -> None:
        assert self.cache is not None
        there = send(torch.from_numpy(weights), self.device)
        blocks = native.cuda.Blocks(first=0, last=-(-self.cache.size // native.block), stride=1)
        native.cuda.recompute_sum(
            self.cache.native, weights=there.data_ptr(), sum=sum, blocks=blocks, where=self._where()
        )

    def _add_rows(self, jobs: list[tuple[int, int, int, int]], weights: Any, weight: float) -> None:
        assert self.cache is not None
        arena = self.scrub.arena
        rows = [(block, (shadow - arena.data_ptr()) // (8 * native.block), first, last)
                for block, shadow, first, last in jobs]  # fmt: skip
        given = None if weights is None else torch.from_numpy(weights)
        ops.add_rows_(arena, self.cache, rows, given, weight)

    def _settle_rows(self, jobs: list[tuple[int, int]], sum: int) -> None:
        assert self.sum is not None
        arena = self.scrub.arena
        ops.settle_rows_(self.sum, arena, [(block, (shadow - arena.data_ptr()) // (8 * native.block))
                                      for block, shadow in jobs])  # fmt: skip

    def _zero(self, sum: int) -> None:
        assert self.sum is not None
        self.sum.zero_()
