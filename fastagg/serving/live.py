"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from fastagg.layout import Layout
from fastagg.serving.statistics import Statistics


class LiveModel:
    """What ``Server.flat`` and ``Server.parameters()`` give: the current version, wherever in memory it lies now.

    Arrays are turned to the next version for as long as somebody holds them. Most callers read a model once and drop
    it; arrivals after that cost nothing more.
    """

    def __init__(self, layout: Layout, flat: Tensor, statistics: Statistics) -> None:
        self.layout = layout
        self.flat = flat.detach()
        self._at = self.flat.data_ptr()
        self._statistics = statistics
        self._out: list[weakref.ref[Tensor]] = []  # in the layout's order, if any were handed out

    def views(self, statistics: Statistics) -> Any:
        """The model in the form it came in; arrays whose own dtype is not fp32 are copies, made now."""
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
        """Point what was handed out at the version that is now the model's."""
        if self._at == flat.data_ptr() and statistics is self._statistics:
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
        # Last: what is cut short is done again by the next call.
        self._at, self._statistics = flat.data_ptr(), statistics

    def _held(self) -> list[Tensor | None]:
        return [reference() for reference in self._out]


def _tensors(model: Any) -> list[Tensor]:
    return list(model.values()) if isinstance(model, dict) else list(model)
