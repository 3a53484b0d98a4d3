"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

import threading
import weakref

from torch import Tensor

from fastagg._types import Arrays, Native
from fastagg.model import Layout
from fastagg.server.statistics import Statistics


class LiveModel:
    """The result of ``Server.flat`` and ``Server.parameters()``: always the current version, wherever it is in memory.

    Arrays are pointed at the next version as long as somebody holds them. Most callers read a model once and drop it;
    then later updates cost nothing more.
    """

    def __init__(self, layout: Layout, engine: Native) -> None:
        flat, statistics = engine.current()
        self.layout = layout
        self.flat: Tensor = flat.detach()
        self._at = self.flat.data_ptr()
        self._statistics: Statistics = statistics
        self._out: list[weakref.ref[Tensor]] = []  # in the layout's order; empty if none were handed out
        self._lock = threading.RLock()

    def views(self) -> Arrays:
        """Return the model in its original form. Arrays whose own dtype is not fp32 are copies made now."""
        with self._lock:
            statistics = self._statistics
            fresh = self.layout.views(self.flat, statistics.values.detach(), statistics.counters)
            if self.layout.has_copies or self.layout.form == "flat":
                return fresh
            tensors = _tensors(fresh)
            for place, held in enumerate(self._held()):
                if held is not None:
                    tensors[place] = held
            self._out = [weakref.ref(tensor) for tensor in tensors]
            return dict(zip(fresh, tensors, strict=True)) if isinstance(fresh, dict) else tensors

    def follow(self, engine: Native) -> None:
        """Point the arrays that were handed out at the current version."""
        with self._lock:
            flat, statistics = engine.current()
            while not self._is_at(flat, statistics):
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
                flat, statistics = engine.current()  # a signal handler may have gone further

    def _is_at(self, flat: Tensor, statistics: Statistics) -> bool:
        known = self._statistics
        same = known.values is statistics.values and known.counters is statistics.counters
        return same and self._at == flat.data_ptr()

    def _held(self) -> list[Tensor | None]:
        return [reference() for reference in self._out]


def _tensors(model: Arrays) -> list[Tensor]:
    return list(model.values()) if isinstance(model, dict) else list(model)
