"""A model, or an update, as one fp32 vector and back: what goes between processes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastagg.model import Layout, ModelState


class Packing:
    """Parameters, then floating-point buffers, then the bytes of counters, for one layout. Nothing is rounded.

    Attributes:
        size: of the vector.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        _, self._counters = layout.blank(torch.device("cpu"))
        self._buffers = layout.size + layout.buffer_size
        self._bytes = sum(counter.nbytes for counter in self._counters)
        self.size = self._buffers + -(-self._bytes // 4)

    def pack(self, flat: Tensor, buffers: Tensor, counters: list[Tensor]) -> Tensor:
        """Return a model as a new vector."""
        vector = torch.empty(self.size)
        vector[: self._layout.size] = flat
        vector[self._layout.size : self._buffers] = buffers
        if counters:
            packed = torch.cat([counter.reshape(-1).view(torch.uint8) for counter in counters])
            vector[self._buffers :].view(torch.uint8)[: self._bytes] = packed
        return vector

    def unpack(self, vector: Tensor) -> ModelState:
        """Inverse of :meth:`pack`. Parameters and buffers are views."""
        packed, end, counters = vector[self._buffers :].view(torch.uint8), 0, []
        for like in self._counters:
            begin, end = end, end + like.nbytes
            counters.append(packed[begin:end].clone().view(like.dtype).reshape(like.shape))
        return ModelState(vector[: self._layout.size], vector[self._layout.size : self._buffers], counters)

    def pack_update(self, update: Mapping[str, Tensor] | Tensor) -> Tensor:
        """Return an update, as local training makes it, as a new vector."""
        if isinstance(update, Tensor):  # of a model without buffers
            return update.clone()
        flat, buffers = torch.empty(self._layout.size), torch.empty(self._layout.buffer_size)
        counters = list(self._counters)
        for e in self._layout.entries:
            if e.role == "counter":
                counters[e.offset] = update[e.name]
            elif e.role in ("parameter", "buffer"):
                vector = flat if e.role == "parameter" else buffers
                vector[e.offset : e.offset + e.size] = update[e.name].reshape(-1)
        return self.pack(flat, buffers, counters)

    def unpack_update(self, vector: Tensor) -> dict[str, Tensor] | Tensor:
        """Inverse of :meth:`pack_update`, as ``Server.receive`` takes it: a vector if the model has no buffers."""
        if not self._layout.has_buffers:
            return vector
        flat, buffers, counters = self.unpack(vector)
        update: dict[str, Tensor] = {}
        for e in self._layout.entries:
            if e.role == "counter":
                update[e.name] = counters[e.offset]
            elif e.role in ("parameter", "buffer"):
                whole = flat if e.role == "parameter" else buffers
                update[e.name] = whole[e.offset : e.offset + e.size].view(e.shape)
        return update
