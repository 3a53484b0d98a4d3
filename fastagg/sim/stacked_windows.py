"""The windows of a convolution or pooling over x [clients, channels, height, width, batch]."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]


class Windows:
    """Where the windows of a kernel lie, for images of one shape.

    An image is kept in the ``stride[0] * stride[1]`` phases of its pixels: those of even and odd rows and columns, say.
    What all windows see at one of their positions, a tap, is then made of runs of neighbours, not of single pixels, and
    several times faster to copy and to add. Everything is a view by strides, worked out here once: as many slices
    would take as long as the small copies they are made for.
    """

    def __init__(self, shape: torch.Size, kernel: Pair, stride: Pair, padding: Pair) -> None:
        sides = [_Side.of(*side) for side in zip(shape[2:4], kernel, stride, padding, strict=True)]
        (y, x), (clients, channels, height, width, batch) = sides, shape
        self.shape = shape
        self.out = (clients, channels, y.out, x.out, batch)
        self._phases = (clients, channels, y.stride, y.length, x.stride, x.length, batch)
        right, row = x.length * batch, x.stride * x.length * batch  # to the next phase of columns; to the next row
        down = y.length * row
        image = y.stride * down
        self._steps = (channels * image, image, row, batch, 1)
        self._image_steps = (channels * height * width * batch, height * width * batch,
                             y.stride * width * batch, x.stride * batch, 1)  # fmt: skip
        self._pieces = [
            (
                (clients, channels, a.number, b.number, batch),
                i * down + a.start * row + j * right + b.start * batch,
                (a.first * width + b.first) * batch,
            )
            for (i, a), (j, b) in product(enumerate(y.phases), enumerate(x.phases))
        ]
        self._taps = [
            i % y.stride * down + i // y.stride * row + j % x.stride * right + j // x.stride * batch
            for i, j in product(range(kernel[0]), range(kernel[1]))
        ]
        # Copied at once: the taps that lie in one phase.
        self._patches = (clients, channels, *kernel, *self.out[2:])
        self._same_phase = [
            (
                (slice(None), slice(None), slice(i, None, y.stride), slice(j, None, x.stride)),
                (
                    clients,
                    channels,
                    len(range(i, kernel[0], y.stride)),
                    len(range(j, kernel[1], x.stride)),
                    *self.out[2:],
                ),
                i * down + j * right,
            )
            for i, j in product(range(min(y.stride, kernel[0])), range(min(x.stride, kernel[1])))
        ]
        self._window_steps = (*self._steps[:4], *self._steps[2:])

    def phases(self, x: Tensor, filling: float) -> Tensor:
        """x taken apart, with its padding."""
        phases = x.new_full(self._phases, filling)
        for size, inside, outside in self._pieces:
            phases.as_strided(size, self._steps, inside).copy_(x.as_strided(size, self._image_steps, outside))
        return phases

    def image(self, phases: Tensor) -> Tensor:
        """What ``phases`` took apart, without the padding."""
        x = phases.new_empty(self.shape)
        for size, inside, outside in self._pieces:
            x.as_strided(size, self._image_steps, outside).copy_(phases.as_strided(size, self._steps, inside))
        return x

    def taps(self, phases: Tensor) -> list[Tensor]:
        """Views [clients, channels, *out, batch], row by row of the kernel."""
        return [phases.as_strided(self.out, self._steps, first) for first in self._taps]

    def patches(self, phases: Tensor) -> Tensor:
        """A copy of all taps, [clients, channels, *kernel, *out, batch]."""
        patches = phases.new_empty(self._patches)
        for which, size, first in self._same_phase:
            patches[which] = phases.as_strided(size, self._window_steps, first)
        return patches


class _Phase(NamedTuple):
    """Which pixels of a side a phase holds: ``number`` from ``first`` on, and where the first stands in the phase."""

    first: int
    start: int
    number: int


class _Side(NamedTuple):
    """One side: the number of windows, the stride, the length of a phase with its padding, the phases."""

    out: int
    stride: int
    length: int
    phases: list[_Phase]

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, padding: int) -> _Side:
        firsts = [(phase - padding) % stride for phase in range(stride)]
        phases = [_Phase(first, (first + padding) // stride, len(range(first, size, stride))) for first in firsts]
        return cls((size + 2 * padding - kernel) // stride + 1, stride, -(-(size + 2 * padding) // stride), phases)
