"""Layers of stacked models for images: x [clients, channels, height, width, batch] to y and the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastagg.sim.stacked_layers import Backward, Layer, Place, product


def refusal(layer: nn.Module, where: str) -> str | None:
    """Why a layer of a type in ``LAYERS`` cannot run stacked; None if it can."""
    if isinstance(layer, nn.Conv2d) and (
        layer.groups != 1
        or layer.padding_mode != "zeros"
        or isinstance(layer.padding, str)
        or _pair(layer.dilation) != (1, 1)
    ):
        return f"the convolution {where} has groups, dilation or a padding that is not run in stacks"
    if isinstance(layer, nn.BatchNorm2d) and (not layer.track_running_stats or layer.momentum is None):
        return f"the BatchNorm {where} keeps no exponential running statistics"
    if isinstance(layer, nn.MaxPool2d) and (layer.ceil_mode or layer.return_indices or _pair(layer.dilation) != (1, 1)):
        return f"the pooling {where} has dilation, partial windows or indices"
    return None


class Windows:
    """The windows of a convolution or pooling: ``tap`` is what all of them see at one of their positions.

    An image is kept in its ``stride[0] * stride[1]`` phases (pixels of even and odd rows and columns, say), so that
    a tap is made of runs of whole rows of windows, not of single pixels: several times faster to copy and to add.
    """

    def __init__(self, layer: nn.Conv2d | nn.MaxPool2d, shape: torch.Size) -> None:
        self.kernel, self._padding = _pair(layer.kernel_size), _pair(layer.padding)
        self._stride = _pair(layer.stride)
        self._shape = shape
        size = (shape[2], shape[3])
        sides = tuple(zip(size, self.kernel, self._stride, self._padding, strict=True))
        self.out = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sides)
        self._halves = [-(-(n + 2 * p) // s) for n, k, s, p in sides]
        self._phases = [[_phase(r, n, s, p) for r in range(s)] for n, k, s, p in sides]

    def phases(self, x: Tensor, filling: float) -> Tensor:
        """x with its padding, [clients, channels, stride, rows, stride, columns, batch]."""
        clients, channels, _, _, batch = self._shape
        (sy, sx), (rows, columns) = self._stride, self._halves
        apart = x.new_full((clients, channels, sy, rows, sx, columns, batch), filling)
        for inside, outside in self._pairs(apart, x):
            inside.copy_(outside)
        return apart

    def image(self, phases: Tensor) -> Tensor:
        """What ``phases`` took apart, without the padding."""
        x = phases.new_empty(self._shape)
        for inside, outside in self._pairs(phases, x):
            outside.copy_(inside)
        return x

    def tap(self, phases: Tensor, i: int, j: int) -> Tensor:
        """A view [clients, channels, *out, batch]."""
        (y, row), (x, column) = divmod(i, self._stride[0]), divmod(j, self._stride[1])
        return phases[:, :, row, y : y + self.out[0], column, x : x + self.out[1]]

    def _pairs(self, phases: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [
            (phases[:, :, i, rows, j, columns], x[:, :, y :: self._stride[0], z :: self._stride[1]])
            for i, (rows, y) in enumerate(self._phases[0])
            for j, (columns, z) in enumerate(self._phases[1])
        ]


def _phase(phase: int, size: int, stride: int, padding: int) -> tuple[slice, int]:
    """Where a side's pixels lie within a phase, and the first of them."""
    first = (phase - padding) % stride
    start = (first + padding) // stride
    return slice(start, start + len(range(first, size, stride))), first


def _conv2d(layer: nn.Conv2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    windows = Windows(layer, x.shape)
    (clients, channels, *_, batch), (kh, kw) = x.shape, windows.kernel
    phases = windows.phases(x, 0.0)
    patches = x.new_empty((clients, channels, kh, kw, *windows.out, batch))
    for i in range(kh):
        for j in range(kw):
            patches[:, :, i, j] = windows.tap(phases, i, j)
    y, back = product(patches.view(clients, channels * kh * kw, -1), place, bias=layer.bias is not None)

    def backward(dy: Tensor) -> Tensor:
        spread = back(dy.flatten(2))
        if not place.asked:
            return spread
        spread = spread.view_as(patches)
        phases.zero_()
        for i in range(kh):
            for j in range(kw):
                windows.tap(phases, i, j).add_(spread[:, :, i, j])
        return windows.image(phases)

    return y.view(clients, -1, *windows.out, batch), backward


def _max_pool(layer: nn.MaxPool2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    windows = Windows(layer, x.shape)
    phases = windows.phases(x, -torch.inf)
    taps = [(i, j) for i in range(windows.kernel[0]) for j in range(windows.kernel[1])]
    y = windows.tap(phases, 0, 0).clone()
    largest = torch.zeros_like(y, dtype=torch.uint8)  # the first of equal ones, as in torch
    for number, (i, j) in enumerate(taps[1:], 1):
        tap = windows.tap(phases, i, j)
        largest.masked_fill_(tap > y, number)
        torch.maximum(y, tap, out=y)

    def backward(dy: Tensor) -> Tensor:
        phases.zero_()
        for number, (i, j) in enumerate(taps):
            windows.tap(phases, i, j).add_(dy * (largest == number))
        return windows.image(phases)

    return y, backward


def _batch_norm(layer: nn.BatchNorm2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    """Statistics of each client's own samples, and its running ones follow (in ``weights``, in place)."""
    weights, name, shape = place.weights, place.name, x.shape
    places = shape[2] * shape[3]
    rows = place.keep.unsqueeze(1).expand(-1, places, -1).reshape(shape[0], 1, -1)  # [clients, 1, places*batch]
    count = place.keep.sum(dim=1, keepdim=True) * places
    # In place where it can be: memory that is already in the cache is several times faster than new memory.
    centred = x.flatten(2) * rows
    mean = centred.sum(dim=2) / count
    centred.sub_(mean.unsqueeze(2)).mul_(rows)
    variance = torch.linalg.vector_norm(centred, dim=2).square() / count
    inverse = (variance + layer.eps).rsqrt()
    scale = inverse * weights[f"{name}weight"] if layer.affine else inverse
    y = centred * scale.unsqueeze(2)
    if layer.affine:
        y += weights[f"{name}bias"].unsqueeze(2)
    momentum = layer.momentum or 0.0
    weights[f"{name}running_mean"].lerp_(mean, momentum)
    weights[f"{name}running_var"].lerp_(variance * (count / (count - 1).clamp_min(1)), momentum)
    weights[f"{name}num_batches_tracked"].add_(1)

    def backward(dy: Tensor) -> Tensor:
        dy = dy.flatten(2)
        dx = dy * centred
        beta, gamma = dy.sum(dim=2), dx.sum(dim=2) * inverse
        if layer.affine:
            place.found[f"{name}weight"], place.found[f"{name}bias"] = gamma, beta
        along, constant = -gamma * inverse * scale / count, -beta * scale / count
        torch.mul(centred, along.unsqueeze(2), out=dx)
        dx.addcmul_(dy, scale.unsqueeze(2)).add_(constant.unsqueeze(2))
        return dx.mul_(rows).view(shape)  # what fills a batch up gets no gradient, and so gives none further down

    return y.view(shape), backward


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


LAYERS: dict[type[nn.Module], Layer] = {nn.Conv2d: _conv2d, nn.BatchNorm2d: _batch_norm, nn.MaxPool2d: _max_pool}
