"""BatchNorm's running statistics (floating-point buffers) and counters (integer buffers) on the server. Each step
combines those that clients sent since the last step. Optimizers do not change them. server/extension.py calls this
module. Limits of a client's influence hold for statistics, too:

- Clipping: the factor that scales a client's update also scales the difference of its statistics from the server's.
- A robust rule: ``Robust.statistics`` combines the clients' statistics. If only some clients of a step send statistics,
  the others count as if they had sent the server's. Counters become the median of the clients'.
- Other rules: a number of batches grows by at most 2**20 in a step.
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

_MOST_BATCHES = 2**20  # a number of batches grows by at most this number from one version to the next

Row = tuple[Tensor | None, list[int]]  # one client's values and counters. None or []: the client sent none.


@dataclass(frozen=True)
class Statistics:
    """The server's buffers, and the clients' buffers since the last step. An object never changes, because clients may
    still read vectors that they were sent. An arrival makes a new object.

    Attributes:
        mode: what floating-point buffers become in a step. ``mean``: the clients' mean. ``weighted``: the clients' mean
            with their shares as weights. ``latest``: the last client's. ``keep``: no buffer changes, integer or not.
        values: the server's floating-point buffers, fp32, 1-D.
        counters: the server's integer buffers. In a step they become the largest of the clients'.
        sum: the sum of the clients' floating-point buffers since the last step. ``weighted``: each is multiplied by the
            client's share. ``latest``: only the last client's. None: no client has sent any.
        maxima: the largest of the clients' integer buffers since the last step, an int64 vector. None: no client has
            sent any.
        count: how many clients sent floating-point buffers since the last step. ``weighted``: the sum of their shares.
        places: ranges of elements that are not averaged: (begin, end, whether the largest value counts). If False, the
            value that arrived first counts.
        counts: for each integer of all counters, whether it is a number of batches. A tensor on the counters' device.
            None: there are no counters.
        held: ``counters`` in one vector, if a step has made the vector. It saves the time to join many counters.
        rule: the robust rule, which combines the buffers instead, as above. None: the server has no robust rule.
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
        """Return the statistics of a model. ``how``: the server's setting ``buffers``."""
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
        """Return the statistics after adding one client's. The caller has checked the client's statistics.

        Args:
            values: the client's floating-point buffers, fp32, on the server's device. None: the client sent none.
            counters: the client's integer buffers in one int64 vector. None: the client sent none.
            share: the weight of the client's update in a mean. 0: the statistics do not change.
            gain: the clipping factor of the client's update.
        """
        if self.mode == "keep" or not share:
            return self
        if values is not None and gain != 1:
            values = self.values + gain * (values - self.values)  # bits of torch.lerp differ between processors
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
        """Set the elements of `total` in `places`, which are not averaged. `theirs`: the new client's values."""
        before = self.sum
        for begin, end, largest in self.places:
            mine = theirs[begin:end]
            if before is not None:
                mine = torch.maximum(before[begin:end], mine) if largest else before[begin:end]
            total[begin:end] = mine

    def after(self, kind: str, shares: Sequence[float] = ()) -> Statistics:
        """Return the statistics after an arrival.

        Args:
            kind: ``step``: the updates made a step. ``drop``: the updates since the last step are dropped. ``keep``:
                neither.
            shares: the weight of each client's statistics, from a robust rule that compares updates. Otherwise empty.
        """
        if kind == "keep" or (self.sum is None and self.maxima is None and not self.rows):
            return self
        fresh = replace(self, sum=None, maxima=None, count=0, rows=())
        if kind == "drop":  # the buffers of dropped updates are dropped, too
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
        """Return whether there is a row for every waiting update in ``direction``, the state of a direction. For rules
        that need no rows, return True."""
        return self.rule is None or self.mode == "keep" or len(self.rows) == len(direction["versions"])

    def nbytes(self) -> int:
        """Return the bytes of the buffers, of their sum and of the rows' values."""
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
    """Return copies of all counters in one int64 vector, on the device of ``like[0]``. Counters on one device are
    joined there, and then copied in one transfer."""
    device, parts = like[0].device, [counter.reshape(-1).to(torch.int64) for counter in counters]
    if len({part.device for part in parts}) > 1:
        parts = [part.to(device) for part in parts]
    return torch.cat(parts).to(device)


def divided(joined: Tensor | list[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Divide the result of :func:`joined`, or a list of its numbers, into counters. Counter i has the shape, type and
    device of ``like[i]``."""
    if isinstance(joined, list):
        joined = torch.tensor(joined, dtype=torch.int64, device="cpu")
    if all(own.dim() == 0 for own in like):  # BatchNorm's counters
        parts: Sequence[Tensor] = joined.unbind()
    else:
        sizes = [own.numel() for own in like]
        parts = [part.view(own.shape) for part, own in zip(joined.split(sizes), like, strict=True)]
    return [part.to(own.device, own.dtype) for part, own in zip(parts, like, strict=True)]
