"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from fastagg.layout import Layout
from fastagg.serving.statistics import Statistics


class LiveModel:
    """The result of ``Server.flat`` and ``Server.parameters()``: always the current version, wherever it is in memory.

    Arrays are pointed at the next version as long as somebody holds them. Most callers read a model once and drop it;
    then later arrivals cost nothing more.
    """

    def __init__(self, layout: Layout, flat: Tensor, statistics: Statistics) -> None:
        self.layout = layout
        self.flat = flat.detach()
        self._at = self.flat.data_ptr()
        self._statistics = statistics
        self._out: list[weakref.ref[Tensor]] = []  # in the layout's order; empty if none were handed out

    def views(self, statistics: Statistics) -> Any:
        """Return the model in its original form. Arrays whose own dtype is not fp32 are copies made now."""
        fresh = self.layout.views(self.flat, statistics.values.detach(), statistics.counters)
        if self.layout.has_copies or self.layout.form == "flat":
            return fresh
        tensors = _tensors(fresh)
        for place, held in enumerate(self._held()):
            if held is not None:
                tensors[place] = held
        self._out = [weakref.ref(tensor) for tensor in tensors]
        return dict(zip(fresh, tensors, strict=True)) if isinstance(fresh, dict) else tensors

    def follow(self, flat: Tensor, statistics: Statistics) -> None:
        """Point the arrays that were handed out at the current version."""
        known = self._statistics
        same = known.values is statistics.values and known.counters is statistics.counters
        if same and self._at == flat.data_ptr():
            return
        self.flat.data = flat
        held = self._held()
        if any(tensor is not None for tensor in held):
            fresh = self.layout.views(flat, statistics.values, statistics.counters)
            for old, new in zip(held, _tensors(fresh), strict=True):
                if old is not None:
                    old.data = new
        else:
            self._out = []
        # Last: if this call is interrupted, the next call repeats it.
        self._at, self._statistics = flat.data_ptr(), statistics

    def _held(self) -> list[Tensor | None]:
        return [reference() for reference in self._out]


def _tensors(model: Any) -> list[Tensor]:
    return list(model.values()) if isinstance(model, dict) else list(model)
