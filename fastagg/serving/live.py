"""Tensors that are handed out once and follow the model from version to version."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastagg.layout import Layout
from fastagg.serving.model_buffers import ModelBuffers


class LiveModel:
    """What ``Server.flat`` and ``Server.parameters()`` give: the current version, wherever in memory it lies now."""

    def __init__(self, layout: Layout, flat: Tensor) -> None:
        self.layout = layout
        self.flat = flat.detach()
        self._views: Any = None

    def views(self, buffers: ModelBuffers) -> Any:
        """The model in the form it came in; arrays whose own dtype is not fp32 are copies, made now."""
        if self._views is None or self.layout.has_copies:
            self._views = self.layout.views(self.flat, buffers.values.detach(), buffers.counters)
        return self._views

    def follow(self, flat: Tensor, buffers: ModelBuffers) -> None:
        """Point what was handed out at the version that is now the model's."""
        if self.flat.data_ptr() == flat.data_ptr() and not self.layout.has_buffers:
            return
        self.flat.data = flat
        if self._views is None or self.layout.has_copies or self.layout.form == "flat":
            return
        fresh = self.layout.views(flat, buffers.values, buffers.counters)
        named = isinstance(fresh, dict)
        handed_out, current = (self._views.values(), fresh.values()) if named else (self._views, fresh)
        for old, new in zip(handed_out, current, strict=True):
            old.data = new
