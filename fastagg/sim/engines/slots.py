"""Results that are large for a pipe: a worker lays their arrays into shared memory, and the other side copies them.

A worker has as many slots as tasks, and takes them in turn. When it is given one task more, its oldest result was read.
So a slot is free whenever it is needed, and nobody has to say so.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import torch

from fastagg.storage.shared import Mapped, SharedVector

LARGE = 2**17  # bytes of arrays


class Laid(NamedTuple):
    """A result without its arrays, and where they lie one after the other."""

    pickled: bytes
    path: str
    size: int
    lengths: list[int]  # in bytes


class Slots:
    """Of a worker that holds ``count`` tasks at most."""

    def __init__(self, count: int) -> None:
        self._slots: list[SharedVector | None] = [None] * count
        self._turn = 0

    def lay(self, value: object, folder: str) -> object:
        """Return ``value``, or a :class:`Laid` that stands for it, in ``folder``."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
        total = sum(array.nbytes for array in arrays)
        if total < LARGE:
            return value
        self._turn = (self._turn + 1) % len(self._slots)
        slot, size = self._slots[self._turn], -(-total // 4)
        if slot is None or slot.size < size:
            slot = self._slots[self._turn] = SharedVector(size, folder=folder)
        place, end = slot.tensor.numpy().view(np.uint8), 0
        for array in arrays:
            begin, end = end, end + array.nbytes
            place[begin:end] = array
        return Laid(pickled, slot.path, slot.size, [array.nbytes for array in arrays])


def read(value: object, mapped: Mapped) -> object:
    """Inverse of :meth:`Slots.lay`, in memory of this process."""
    if not isinstance(value, Laid):
        return value
    place, end = mapped.get(value.path, value.size, torch.float32).numpy().view(np.uint8), 0
    buffers = []
    for length in value.lengths:
        begin, end = end, end + length
        buffers.append(place[begin:end].copy())
    return pickle.loads(value.pickled, buffers=buffers)
