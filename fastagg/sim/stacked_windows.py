"""The windows of a convolution or pooling over x [clients, channels, height, width, batch]."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]


class Windows:
    """The positions of a kernel's windows, for images of one shape.

    An image is divided into ``stride[0] * stride[1]`` phases of its pixels, for example those of even and odd rows and
    columns. A tap is what all windows see at one position of the kernel. In a phase a tap consists of runs of
    neighbours, not of single pixels. So it is several times faster to copy and to add. All taps are strided views,
    computed here once. Computing as many slices would take as long as the small copies themselves.
    """

    def __init__(self, shape: torch.Size, kernel: Pair, stride: Pair, padding: Pair) -> None:
        sides = [_Side.of(*side) for side in zip(shape[2:4], kernel, stride, padding, strict=True)]
        (y, x), (clients, channels, height, width, batch) = sides, shape
        self.shape = shape
        self.out = (clients, channels, y.out, x.out, batch)
        self._phases = (clients, channels, y.stride, y.length, x.stride, x.length, batch)
        # the step to the next phase of columns, and to the next row
        right, row = x.length * batch, x.stride * x.length * batch
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
        # Taps in the same phase are copied at once.
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
        """Divide x into its phases, with padding."""
        phases = x.new_full(self._phases, filling)
        for size, inside, outside in self._pieces:
            phases.as_strided(size, self._steps, inside).copy_(x.as_strided(size, self._image_steps, outside))
        return phases

    def image(self, phases: Tensor) -> Tensor:
        """Return the image that was divided into ``phases``, without the padding."""
        x = phases.new_empty(self.shape)
        for size, inside, outside in self._pieces:
            x.as_strided(size, self._image_steps, outside).copy_(phases.as_strided(size, self._steps, inside))
        return x

    def taps(self, phases: Tensor) -> list[Tensor]:
        """Return views [clients, channels, *out, batch], row by row of the kernel."""
        return [phases.as_strided(self.out, self._steps, first) for first in self._taps]

    def patches(self, phases: Tensor) -> Tensor:
        """Return a copy of all taps, [clients, channels, *kernel, *out, batch]."""
        patches = phases.new_empty(self._patches)
        for which, size, first in self._same_phase:
            patches[which] = phases.as_strided(size, self._window_steps, first)
        return patches


class _Phase(NamedTuple):
    """The pixels of a side in one phase: ``number`` from ``first`` on, and the first one's place in the phase."""

    first: int
    start: int
    number: int


class _Side(NamedTuple):
    """One side of an image: the number of windows, the stride, the length of a padded phase, the phases."""

    out: int
    stride: int
    length: int
    phases: list[_Phase]

    @classmethod
    def of(cls, size: int, kernel: int, stride: int, padding: int) -> _Side:
        firsts = [(phase - padding) % stride for phase in range(stride)]
        phases = [_Phase(first, (first + padding) // stride, len(range(first, size, stride))) for first in firsts]
        return cls((size + 2 * padding - kernel) // stride + 1, stride, -(-(size + 2 * padding) // stride), phases)
