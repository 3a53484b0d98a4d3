"""BatchNorm's running statistics and counters on the server. They follow plain means, not an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg.layout import Parsed
from fastagg.parts.names import Buffers, words
from fastagg.storage import memory, staging
from fastagg.storage.pieces import Pieces

MODES = words(Buffers)


@dataclass(frozen=True)
class Statistics:
    """The server's buffers. In a step, floating-point buffers become the mean of the clients' (``mean``) or those of
    the last client (``latest``), or stay (``keep``). Integer buffers become the largest of the clients', or stay.

    Nothing changes in place. An arrival makes a new object, because clients that were sent vectors may still read them.

    Attributes:
        mode: ``mean``, ``latest`` or ``keep``.
        values: floating-point buffers, fp32, 1-D.
        counters: integer buffers.
        sum, most, count: of the clients' buffers since the last step.
    """

    mode: Buffers
    values: Tensor
    counters: list[Tensor]
    sum: Tensor | None = None
    most: list[Tensor] | None = None
    count: int = 0

    def arrive(self, parsed: Parsed, verdict: Tensor | None = None) -> Statistics:
        """Return the statistics with one client's buffers added, if it sent any. Rejected updates count with the
        server's."""
        if self.mode == "keep" or (parsed.buffers is None and parsed.counters is None):
            return self
        total, most = self.sum if self.count else None, self.most if self.count else None
        if parsed.buffers is not None:
            theirs = staging.upload(parsed.buffers, self.values.device)
            if verdict is not None:
                theirs = Pieces([torch.where(verdict[5] > 0, theirs.flat(torch.float32), self.values)])
            fresh = total is None or self.mode == "latest"
            out = memory.empty(self.values.numel(), self.values.device)
            if total is not None and not fresh:
                out.copy_(total)
            total = ops.accumulate_(out, theirs, fresh=fresh)
        if parsed.counters is not None:
            counters = _brought(parsed.counters, self.counters)
            if most is not None:
                counters = [_larger(new, old) for new, old in zip(counters, most, strict=True)]
            most = counters
        return replace(self, sum=total, most=most, count=self.count + 1)

    def after(self, parsed: Parsed) -> Tensor:
        """Return the floating-point buffers after a step whose last update is this client's."""
        return self.arrive(parsed).step().values

    def step(self) -> Statistics:
        """Return the statistics after a step of the model."""
        if self.count == 0:
            return self
        values = self.values
        if self.sum is not None:
            values = self.sum / (1 if self.mode == "latest" else self.count)
        counters = self.counters if self.most is None else self.most
        return Statistics(self.mode, values, counters)

    def discard(self) -> Statistics:
        """Return the statistics after a dropped step. The buffers that came with its updates are dropped, too."""
        return Statistics(self.mode, self.values, self.counters)

    def nbytes(self) -> int:
        """Return the bytes of the buffers and of their running sum."""
        held = [self.values, *self.counters, *([] if self.sum is None else [self.sum])]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def finite(self) -> bool:
        """Return whether all numbers are finite."""
        held = [self.values, *([] if self.sum is None else [self.sum])]
        return all(bool(torch.isfinite(tensor).all()) for tensor in held)

    def state_dict(self) -> dict[str, Any]:
        """Return the state. Tensors are shared, not copied."""
        return {
            "values": self.values, "counters": self.counters, "sum": self.sum, "most": self.most, "count": self.count,
        }  # fmt: skip

    def loaded(self, state: dict[str, Any]) -> Statistics:
        """Return the statistics from :meth:`state_dict`. Tensors are copied.

        Raises:
            ValueError: their shapes are not this model's.
        """
        total = None if state["sum"] is None else _like(self.values, state["sum"])
        most = None if state["most"] is None else self._own(state["most"])
        values, counters = _like(self.values, state["values"]), self._own(state["counters"])
        return Statistics(self.mode, values, counters, total, most, int(state["count"]))

    def _own(self, counters: list[Tensor]) -> list[Tensor]:
        return [_like(mine, theirs) for mine, theirs in zip(self.counters, counters, strict=True)]


def _like(mine: Tensor, theirs: Tensor) -> Tensor:
    if theirs.shape != mine.shape:
        raise ValueError(f"a buffer: expected shape {list(mine.shape)}, got {list(theirs.shape)}")
    return theirs.to(mine.device, mine.dtype, copy=True)


def _brought(counters: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Return copies with the devices and types of ``like``. All that lie on a GPU come in one transfer."""
    away = [i for i, new in enumerate(counters) if new.is_cuda and like[i].device.type == "cpu"]
    found = dict(enumerate(counters))
    if len(away) > 1:
        together = torch.cat([counters[i].reshape(-1).to(torch.int64) for i in away]).cpu()
        parts = together.split([counters[i].numel() for i in away])
        found |= {i: part.view(counters[i].shape) for i, part in zip(away, parts, strict=True)}
    return [found[i].to(old.device, old.dtype, copy=True) for i, old in enumerate(like)]


def _larger(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch has no maximum for these
        return torch.maximum(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    return torch.maximum(a, b)
