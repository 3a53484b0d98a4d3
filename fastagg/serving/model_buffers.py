"""BatchNorm's running statistics and counters on the server: no steps of an optimizer, just plain means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg.layout import Parsed
from fastagg.storage import memory
from fastagg.storage.pieces import Pieces

MODES = ("mean", "latest", "keep")


class ModelBuffers:
    """Floating-point buffers take the mean of the clients' in the step (``mean``), the last arriving client's
    (``latest``), or stay (``keep``); integer buffers take the largest of the clients' in the step, or stay.

    Vectors are replaced, never changed in place: clients that were sent them may still read them.

    Args:
        mode: ``mean``, ``latest`` or ``keep``.
        values: floating-point buffers, fp32, 1-D.
        counters: integer buffers.
    """

    def __init__(self, mode: str, values: Tensor, counters: list[Tensor]) -> None:
        self.mode, self.values, self.counters = mode, values, counters
        self._sum: Tensor | None = None
        self._most: list[Tensor] | None = None
        self._count = 0

    def arrive(self, parsed: Parsed, verdict: Tensor | None = None) -> None:
        """Take one client's buffers, if it sent any; the server's own stand for those of an update that is not kept."""
        if self.mode == "keep" or (parsed.buffers is None and parsed.counters is None):
            return
        first = self._count == 0
        if parsed.buffers is not None:
            if self._sum is None:
                self._sum = memory.empty(self.values.numel(), self.values.device)
            fresh = first or self.mode == "latest"
            theirs = parsed.buffers.to(self.values.device)
            if verdict is not None:
                theirs = Pieces([torch.where(verdict[5] > 0, theirs.flat(torch.float32), self.values)])
            ops.accumulate_(self._sum, theirs, fresh=fresh)
        if parsed.counters is not None:
            counters = [
                new.to(old.device, old.dtype, copy=True)
                for new, old in zip(parsed.counters, self.counters, strict=True)
            ]
            if not first and self._most is not None:
                counters = [_larger(new, old) for new, old in zip(counters, self._most, strict=True)]
            self._most = counters
        self._count += 1

    def after(self, parsed: Parsed) -> Tensor:
        """The floating-point buffers that a step would leave if this client's were its last; nothing changes."""
        if self.mode == "keep" or (parsed.buffers is None and self._count == 0):
            return self.values
        if parsed.buffers is None:
            return self.values if self._sum is None else self._sum / (1 if self.mode == "latest" else self._count)
        theirs = parsed.buffers.flat(torch.float32).to(self.values.device)
        if self.mode == "latest" or self._count == 0 or self._sum is None:
            return theirs
        return (self._sum + theirs) / (self._count + 1)

    def step(self) -> None:
        """The model stepped: the buffers follow."""
        if self._count == 0:
            return
        if self._sum is not None:
            self.values = self._sum / (1 if self.mode == "latest" else self._count)
        if self._most is not None:
            self.counters = self._most
        self._most, self._count = None, 0

    def discard(self) -> None:
        """The step was dropped: so are the buffers that came with it."""
        self._most, self._count = None, 0

    def nbytes(self) -> int:
        """Bytes of the buffers and of their running sum."""
        held = [self.values, *self.counters, *([] if self._sum is None else [self._sum])]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def state_dict(self) -> dict[str, Any]:
        """Tensors are shared, not copied."""
        running = self._sum if self._count else None
        return {
            "values": self.values, "counters": self.counters,
            "sum": running, "most": self._most, "count": self._count,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`; tensors are copied.

        Raises:
            ValueError: they have other shapes than this model's.
        """
        values, counters = _like(self.values, state["values"]), self._own(state["counters"])
        self._sum = None if state["sum"] is None else _like(self.values, state["sum"])
        self._most = None if state["most"] is None else self._own(state["most"])
        self.values, self.counters, self._count = values, counters, int(state["count"])

    def _own(self, counters: list[Tensor]) -> list[Tensor]:
        return [_like(mine, theirs) for mine, theirs in zip(self.counters, counters, strict=True)]


def _like(mine: Tensor, theirs: Tensor) -> Tensor:
    if theirs.shape != mine.shape:
        raise ValueError(f"a buffer: expected shape {list(mine.shape)}, got {list(theirs.shape)}")
    return theirs.to(mine.device, mine.dtype, copy=True)


def _larger(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch has no maximum of these
        return torch.maximum(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    return torch.maximum(a, b)
