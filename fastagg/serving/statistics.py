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
        sum: of the clients' floating-point buffers since the last step.
        most: the largest of the clients' integer buffers since then, int64, one after the other.
        count: how many clients sent buffers since then.
    """

    mode: Buffers
    values: Tensor
    counters: list[Tensor]
    sum: Tensor | None = None
    most: Tensor | None = None
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
            counters = _joined(parsed.counters, self.counters)
            most = counters if most is None else torch.maximum(counters, most)
        return replace(self, sum=total, most=most, count=self.count + 1)

    def add(self, reported: Any) -> Statistics:
        """Do what :meth:`arrive` does with the buffers that native code has read (csrc/serving/reported.h)."""
        if self.mode == "keep" or not reported.given:
            return self
        total = reported.add_to(None if self.mode == "latest" or not self.count else self.sum)
        most = reported.largest(self.most if self.count else None)
        return Statistics(self.mode, self.values, self.counters, total, most, self.count + 1)

    def values_after(self, parsed: Parsed) -> Tensor:
        """Return the floating-point buffers after a step whose last update is this client's."""
        return self.arrive(parsed).step().values

    def after(self, kind: str) -> Statistics:
        """Return the statistics after an arrival with a ``step``, a ``drop``, or neither (``keep``)."""
        return self.step() if kind == "step" else self.discard() if kind == "drop" else self

    def step(self) -> Statistics:
        """Return the statistics after a step of the model."""
        if self.count == 0:
            return self
        values = self.values
        if self.sum is not None:
            values = self.sum / (1 if self.mode == "latest" else self.count)
        counters = self.counters if self.most is None else _divided(self.most, self.counters)
        return Statistics(self.mode, values, counters)

    def discard(self) -> Statistics:
        """Return the statistics after a dropped step. The buffers that came with its updates are dropped, too."""
        if self.count == 0:
            return self
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
        most = None if self.most is None else _divided(self.most, self.counters)
        return {
            "values": self.values, "counters": self.counters, "sum": self.sum, "most": most, "count": self.count,
        }  # fmt: skip

    def loaded(self, state: dict[str, Any]) -> Statistics:
        """Return the statistics from :meth:`state_dict`. Tensors are copied.

        Raises:
            ValueError: their shapes are not this model's.
        """
        total = None if state["sum"] is None else _like(self.values, state["sum"])
        most = None if state["most"] is None else _joined(self._own(state["most"]), self.counters)
        values, counters = _like(self.values, state["values"]), self._own(state["counters"])
        return Statistics(self.mode, values, counters, total, most, int(state["count"]))

    def _own(self, counters: list[Tensor]) -> list[Tensor]:
        return [_like(mine, theirs) for mine, theirs in zip(self.counters, counters, strict=True)]


def _like(mine: Tensor, theirs: Tensor) -> Tensor:
    if theirs.shape != mine.shape:
        raise ValueError(f"a buffer: expected shape {list(mine.shape)}, got {list(theirs.shape)}")
    return theirs.to(mine.device, mine.dtype, copy=True)


def _joined(counters: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Return copies of all counters in one int64 vector on the device of the first of ``like``. All that lie on one GPU
    come in one transfer."""
    device, parts = like[0].device, [counter.reshape(-1).to(torch.int64) for counter in counters]
    if len({part.device for part in parts}) > 1:
        parts = [part.to(device) for part in parts]
    return torch.cat(parts).to(device)


def _divided(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Inverse of :func:`_joined`, with the devices and types of ``like``."""
    if all(own.dim() == 0 for own in like):  # BatchNorm's counters
        parts: Sequence[Tensor] = joined.unbind()
    else:
        sizes = [own.numel() for own in like]
        parts = [part.view(own.shape) for part, own in zip(joined.split(sizes), like, strict=True)]
    return [part.to(own.device, own.dtype) for part, own in zip(parts, like, strict=True)]
