"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from torch import Tensor

from fastagg._types import Arrays, Native
from fastagg.model import Layout
from fastagg.server.statistics import Statistics


class LiveModel:
    """The result of ``Server.flat`` and ``Server.parameters()``: always the current version, wherever it is in memory.

    Arrays are pointed at the next version as long as somebody holds them. Most callers read a model once and drop it;
    then later updates cost nothing more.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._flat: Callable[[], Tensor | None] = _nothing  # a weak reference, once it was asked for
        self._out: list[weakref.ref[Tensor]] = []  # in the layout's order; empty if none were handed out
        self._at = 0  # where what was handed out points to; 0: not all of it points to the same
        self._statistics: Statistics | None = None
        self._lock = threading.RLock()

    def flat(self, engine: Native) -> Tensor:
        """Return the model as one vector."""
        with self._lock:
            held = self._flat()
            if held is None:
                held = engine.flat.detach()
                # First known, then pointed at what is current: a version that comes in between is not missed.
                self._flat, self._at = weakref.ref(held), 0
            self.follow(engine)
            return held

    def views(self, engine: Native) -> Arrays:
        """Return the model in its original form. Arrays whose own dtype is not fp32 are copies made now."""
        layout = self._layout
        with self._lock:
            flat, (_, statistics) = self.flat(engine), engine.current()
            fresh = layout.views(flat, statistics.values.detach(), statistics.counters)
            if layout.has_copies or layout.form == "flat":
                return fresh
            tensors = _tensors(fresh)
            for place, held in enumerate(self._held()):
                if held is not None:
                    tensors[place] = held
            self._out, self._at = [weakref.ref(tensor) for tensor in tensors], 0
            self.follow(engine)
            return dict(zip(fresh, tensors, strict=True)) if isinstance(fresh, dict) else tensors

    def follow(self, engine: Native) -> None:
        """Point the arrays that were handed out at the current version."""
        if not self._out and self._flat() is None:
            return
        with self._lock:
            if self._flat() is None and not any(tensor is not None for tensor in self._held()):
                self._out = []
                return
            flat, statistics = engine.current()
            while not self._is_at(flat, statistics):
                whole, held = self._flat(), self._held()
                if whole is not None:
                    whole.data = flat
                if any(tensor is not None for tensor in held):
                    fresh = self._layout.views(flat, statistics.values, statistics.counters)
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
        same = known is not None and known.values is statistics.values and known.counters is statistics.counters
        return same and self._at == flat.data_ptr()

    def _held(self) -> list[Tensor | None]:
        return [reference() for reference in self._out]


def _nothing() -> None:
    """What a weak reference to nothing returns."""


def _tensors(model: Arrays) -> list[Tensor]:
    return list(model.values()) if isinstance(model, dict) else list(model)
