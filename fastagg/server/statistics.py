"""BatchNorm's running statistics and counters on the server. The rule that combines the updates also combines the
statistics. An optimizer does not change statistics. Limits of a client's influence hold for statistics, too:

- Clipping: the factor that scales a client's update also scales the change of the client's statistics.
- A robust rule: ``Robust.statistics`` combines the clients' statistics. A client that sends no statistics counts as if
  it had sent the server's.
- Counters of batches: a robust rule takes the clients' median. Otherwise a counter grows by at most 2**20 in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg._types import State
from fastagg.errors import UpdateTooLarge
from fastagg.model import Layout
from fastagg.model.layout import mode_of
from fastagg.model.statistics import is_count
from fastagg.rules.directions import Direction, Robust
from fastagg.rules.names import Buffers
from fastagg.storage import memory

_MOST_BATCHES = 2**20  # the most by which a number of batches grows from one version to the next

Row = tuple[Tensor | None, list[int]]  # one client's values and counters. None or []: the client sent none.


@dataclass(frozen=True)
class Statistics:
    """The server's buffers. In a step, floating-point buffers become the mean of the clients' (``mean``, or
    ``weighted`` by their samples) or the last client's (``latest``), or do not change (``keep``). Integer buffers
    become the largest of the clients', or do not change. With :class:`Robust`, the robust rule combines the buffers of
    all clients of the step.

    An object never changes. An arrival makes a new object, because clients may still read vectors that they were sent.

    Attributes:
        mode: ``mean``, ``weighted``, ``latest`` or ``keep``.
        values: floating-point buffers, fp32, 1-D.
        counters: integer buffers.
        sum: the sum of the clients' floating-point buffers since the last step, each multiplied by the client's share.
        maxima: the largest of the clients' integer buffers since the last step, an int64 vector.
        count: how many clients sent floating-point buffers since the last step. ``weighted``: the sum of their shares.
        places: ranges of elements that are not averaged: (begin, end, whether the largest value counts). If False, the
            value that arrived first counts.
        counts: for each integer of all counters, whether it is a number of batches. A tensor on the counters' device.
        held: the counters in one vector, if a step has made it. It saves the time to join many counters.
        rule: the robust rule, if the server has one.
        rows: with a robust rule, the clients' values and counters since the last step.
    """

    mode: Buffers
    values: Tensor
    counters: list[Tensor]
    sum: Tensor | None = None
    maxima: Tensor | None = None
    count: float = 0
    places: tuple[tuple[int, int, bool], ...] = ()
    counts: Tensor | None = None
    held: Tensor | None = None
    rule: Robust | None = None
    rows: tuple[Row, ...] = ()

    @classmethod
    def of(
        cls, how: Buffers | Mapping[str, str], direction: Direction, layout: Layout, values: Tensor,
        counters: list[Tensor],
    ) -> Statistics:  # fmt: skip
        """Return the statistics of a model, by the server's setting and rule."""
        rule = direction if isinstance(direction, Robust) else None
        named = [is_count(e.name) for e in layout.entries if e.role == "counter" for _ in range(e.size)]
        counts = torch.tensor(named, dtype=torch.bool, device=counters[0].device) if counters else None
        if isinstance(how, str):
            return cls(how, values, counters, counts=counts, rule=rule)
        modes = [(e, mode_of(how, e.name)) for e in layout.entries if e.role == "buffer"]
        places = tuple((e.offset, e.offset + e.size, m == "max") for e, m in modes if m in ("max", "first"))
        mode: Buffers = "weighted" if "weighted" in how.values() else "mean"
        return cls(mode, values, counters, places=places, counts=counts, rule=rule)

    def add(
        self, values: Tensor | None, counters: Tensor | None, share: float = 1.0, gain: float = 1.0
    ) -> Statistics:  # fmt: skip
        """Return the statistics after adding those of one client, which were checked already.

        Args:
            values: the client's floating-point buffers, fp32, on the server's device. None: the client sent none.
            counters: the client's integer buffers in one int64 vector. None: the client sent none.
            share: the share of the client's update in a mean.
            gain: the clipping factor of the client's update, which also scales the movement of the statistics.
        """
        if self.mode == "keep" or not share:
            return self
        if values is not None and gain != 1:
            values = self.values + gain * (values - self.values)  # not lerp, because its bits differ between processors
        if self.rule is not None:
            row = None if values is None else values.cpu(), [] if counters is None else counters.tolist()
            return replace(self, rows=(*self.rows, row))
        if values is None and counters is None:
            return self
        share = share if self.mode == "weighted" else 1
        total, maxima, count = self.sum, self.maxima, self.count
        if values is not None:
            out = memory.empty(values.numel(), values.device)
            if total is not None:
                out.copy_(total)
            total = ops.accumulate_(out, values, share, fresh=total is None or self.mode == "latest")
            if share != 1 and not bool(torch.isfinite(total).all()):
                raise UpdateTooLarge(f"buffers: {share:g} samples make the sum of the running statistics infinite")
            self._pick(total, values)
            count += share
        if counters is not None:
            maxima = counters if maxima is None else torch.maximum(counters, maxima)
        return replace(self, sum=total, maxima=maxima, count=count)

    def _pick(self, total: Tensor, theirs: Tensor) -> None:
        """Set the elements of `total` that are not averaged: the largest or the first value counts."""
        before = self.sum
        for begin, end, largest in self.places:
            mine = theirs[begin:end]
            if before is not None:
                mine = torch.maximum(before[begin:end], mine) if largest else before[begin:end]
            total[begin:end] = mine

    def after(self, kind: str, shares: Sequence[float] = ()) -> Statistics:
        """Return the statistics after an arrival with a ``step``, a ``drop``, or neither (``keep``).

        Args:
            shares: the weight of each client's statistics, from a robust rule that compares updates.
        """
        if kind == "keep" or (self.sum is None and self.maxima is None and not self.rows):
            return self
        fresh = replace(self, sum=None, maxima=None, count=0, rows=())
        if kind == "drop":  # the updates are dropped, so their buffers are, too
            return fresh
        if self.rule is not None:
            return replace(fresh, **self._combined(self.rule, shares))
        values = self.values
        if self.sum is not None:
            values = self.sum / (1 if self.mode == "latest" else self.count)
            for begin, end, _ in self.places:
                values[begin:end] = self.sum[begin:end]
        if self.maxima is not None:
            counters = self.counters
            assert self.counts is not None
            held = joined(counters, counters) if self.held is None else self.held
            maxima = self.maxima.to(held.device)
            maxima = torch.where(self.counts, maxima.minimum(held + _MOST_BATCHES), maxima)
            return replace(fresh, values=values, counters=divided(maxima, counters), held=maxima)
        return replace(fresh, values=values)

    def _combined(self, rule: Robust, shares: Sequence[float]) -> dict[str, Any]:
        values, counters = self.values, self.counters
        if any(row is not None for row, _ in self.rows):
            own = values.cpu()
            rows = [own if row is None else row for row, _ in self.rows]
            values = rule.statistics(rows, own, shares).to(values.device)
        if any(numbers for _, numbers in self.rows):
            held = joined(counters, counters).tolist()
            counters = divided(_median([numbers or held for _, numbers in self.rows]), counters)
        return {"values": values, "counters": counters}

    def has_all(self, direction: State) -> bool:
        """Return whether there is a row for every waiting update in a direction's state. Only robust rules need
        rows."""
        return self.rule is None or self.mode == "keep" or len(self.rows) == len(direction["versions"])

    def nbytes(self) -> int:
        """Return the bytes of the buffers and of their running sum."""
        held = [self.values, *self.counters, self.sum, *(values for values, _ in self.rows)]
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def finite(self) -> bool:
        held = [self.values, self.sum, *(values for values, _ in self.rows)]
        return all(bool(torch.isfinite(tensor).all()) for tensor in held if tensor is not None)

    def state_dict(self) -> State:
        """Return the state. Tensors are shared, not copied."""
        maxima = None if self.maxima is None else divided(self.maxima, self.counters)
        state = {
            "values": self.values, "counters": self.counters, "sum": self.sum, "most": maxima, "count": self.count,
        }  # fmt: skip
        return state if self.rule is None else {**state, "rows": [list(row) for row in self.rows]}

    def loaded(self, state: State) -> Statistics:
        """Return the statistics from :meth:`state_dict`. Tensors are copied."""
        total = None if state["sum"] is None else _like(self.values, state["sum"])
        maxima = None if state["most"] is None else joined(self._own(state["most"]), self.counters)
        values, counters = _like(self.values, state["values"]), self._own(state["counters"])
        own, size = self.values.cpu(), sum(counter.numel() for counter in counters)
        rows: list[Row] = []
        for row, numbers in state.get("rows", ()):
            if len(numbers) not in (0, size):
                raise ValueError(f"counters of a client: expected {size} numbers, got {len(numbers)}")
            rows.append((None if row is None else _like(own, row), [int(number) for number in numbers]))
        return replace(
            self, values=values, counters=counters, sum=total, maxima=maxima, count=state["count"], held=None,
            rows=tuple(rows),
        )  # fmt: skip

    def _own(self, counters: list[Tensor]) -> list[Tensor]:
        return [_like(mine, theirs) for mine, theirs in zip(self.counters, counters, strict=True)]


def _like(mine: Tensor, theirs: Tensor) -> Tensor:
    if theirs.shape != mine.shape:
        raise ValueError(f"a buffer: expected shape {list(mine.shape)}, got {list(theirs.shape)}")
    return theirs.to(mine.device, mine.dtype, copy=True)


def _median(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu").median(0).values


def joined(counters: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Return copies of all counters in one int64 vector, on the device of the first of ``like``. If all counters are on
    one GPU, they are copied in one transfer."""
    device, parts = like[0].device, [counter.reshape(-1).to(torch.int64) for counter in counters]
    if len({part.device for part in parts}) > 1:
        parts = [part.to(device) for part in parts]
    return torch.cat(parts).to(device)


def divided(joined: Tensor | list[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the counters from the result of :func:`joined`, or from a list of numbers, as tensors like ``like``."""
    if isinstance(joined, list):
        joined = torch.tensor(joined, dtype=torch.int64, device="cpu")
    if all(own.dim() == 0 for own in like):  # BatchNorm's counters
        parts: Sequence[Tensor] = joined.unbind()
    else:
        sizes = [own.numel() for own in like]
        parts = [part.view(own.shape) for part, own in zip(joined.split(sizes), like, strict=True)]
    return [part.to(own.device, own.dtype) for part, own in zip(parts, like, strict=True)]
