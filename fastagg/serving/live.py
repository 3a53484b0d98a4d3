"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastagg.layout import Layout
from fastagg.serving.statistics import Statistics


class LiveModel:
    """What ``Server.flat`` and ``Server.parameters()`` give: the current version, wherever in memory it lies now."""

    def __init__(self, layout: Layout, flat: Tensor, statistics: Statistics) -> None:
        self.layout = layout
        self.flat = flat.detach()
        self._at = self.flat.data_ptr()
        self._statistics = statistics
        self._views: Any = None

    def views(self, statistics: Statistics) -> Any:
        """The model in the form it came in; arrays whose own dtype is not fp32 are copies, made now."""
        if self._views is None or self.layout.has_copies:
            self._views = self.layout.views(self.flat, statistics.values.detach(), statistics.counters)
        return self._views

    def follow(self, flat: Tensor, statistics: Statistics) -> None:
        """Point what was handed out at the version that is now the model's."""
        if self._at == flat.data_ptr() and statistics is self._statistics:
            return
        self.flat.data = flat
        if self._views is not None and not self.layout.has_copies and self.layout.form != "flat":
            fresh = self.layout.views(flat, statistics.values, statistics.counters)
            named = isinstance(fresh, dict)
            handed_out, current = (self._views.values(), fresh.values()) if named else (self._views, fresh)
            for old, new in zip(handed_out, current, strict=True):
                old.data = new
        # Last: what is cut short is done again by the next call.
        self._at, self._statistics = flat.data_ptr(), statistics
