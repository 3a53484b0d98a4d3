"""Layers of stacked models for images, x [clients, channels, height, width, batch], with their backward functions."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from fastagg._types import Foreign
from fastagg.sim.stacked_layers import Backward, Layer, Place, product
from fastagg.sim.stacked_windows import Pair, Windows


def refusal(layer: nn.Module, where: str) -> str | None:
    """Return why a layer of a type in ``LAYERS`` cannot run stacked; None if it can."""
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


@lru_cache(maxsize=1024)
def _windows(shape: torch.Size, kernel: Pair, stride: Pair, padding: Pair) -> Windows:
    return Windows(shape, kernel, stride, padding)


def _of(layer: nn.Conv2d | nn.MaxPool2d, x: Tensor) -> Windows:
    return _windows(x.shape, _pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))


def _conv2d(layer: nn.Conv2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    windows = _of(layer, x)
    phases = windows.phases(x, 0.0)
    patches = windows.patches(phases)
    y, back = product(patches.flatten(4).flatten(1, 3), place, bias=layer.bias is not None)

    def backward(dy: Tensor) -> Tensor:
        spread = back(dy.flatten(2))
        if not place.asked:
            return spread
        phases.zero_()
        for tap, part in zip(windows.taps(phases), spread.view_as(patches).flatten(2, 3).unbind(2), strict=True):
            tap.add_(part)
        return windows.image(phases)

    return y.unflatten(2, windows.out[2:]), backward


def _max_pool(layer: nn.MaxPool2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    windows = _of(layer, x)
    phases = windows.phases(x, -torch.inf)
    first, *rest = windows.taps(phases)
    y = first.clone()
    largest = torch.zeros_like(y, dtype=torch.uint8)  # the first of equal ones, as in torch
    for number, tap in enumerate(rest, 1):
        largest.masked_fill_(tap > y, number)
        torch.maximum(y, tap, out=y)

    def backward(dy: Tensor) -> Tensor:
        phases.zero_()
        for number, tap in enumerate(windows.taps(phases)):
            tap.add_(dy * (largest == number))
        return windows.image(phases)

    return y, backward


def _batch_norm(layer: nn.BatchNorm2d, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    """Uses the statistics of each client's own samples. Updates its running statistics in ``weights`` in place."""
    weights, name, shape = place.weights, place.name, x.shape
    places = shape[2] * shape[3]
    rows = place.keep.unsqueeze(1).expand(-1, places, -1).reshape(shape[0], 1, -1)  # [clients, 1, places*batch]
    count = place.count * places
    # In place if possible: memory that is already in the cache is several times faster than new memory.
    flat = x.flatten(2)
    centred = torch.mul(flat, rows, out=flat if place.owned else None)
    mean = centred.sum(dim=2) / count
    centred.addcmul_(mean.unsqueeze(2), rows, value=-1.0)
    squares = torch.linalg.vector_norm(centred, dim=2).square_()
    inverse = (squares / count).add_(layer.eps).rsqrt_()
    scale = inverse * weights[f"{name}weight"] if layer.affine else inverse
    y = centred * scale.unsqueeze(2)
    if layer.affine:
        y.add_(weights[f"{name}bias"].unsqueeze(2))
    momentum = layer.momentum or 0.0
    weights[f"{name}running_mean"].lerp_(mean, momentum)
    weights[f"{name}running_var"].lerp_(squares / (count - 1).clamp_min_(1), momentum)
    weights[f"{name}num_batches_tracked"].add_(1)

    def backward(dy: Tensor) -> Tensor:
        dy = dy.flatten(2)
        dx = dy * centred
        beta, gamma = dy.sum(dim=2), dx.sum(dim=2).mul_(inverse)
        if layer.affine:
            place.found[f"{name}weight"], place.found[f"{name}bias"] = gamma, beta
        share = scale / -count
        torch.mul(centred, (gamma * inverse).mul_(share).unsqueeze(2), out=dx)
        # Padding has no gradient and is not centred, so only the shift must leave it out: then it passes none on.
        dx.addcmul_(dy, scale.unsqueeze(2)).addcmul_(share.mul_(beta).unsqueeze(2), rows)
        return dx.view(shape)

    return y.view(shape), backward


def _group_norm(layer: nn.GroupNorm, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    """Uses the statistics of each sample's groups of channels. A batch's padding is treated like samples."""
    weights, name, shape = place.weights, place.name, x.shape
    clients, channels, batch = shape[0], shape[1], shape[-1]
    # [clients, groups, values, batch], and the same memory by channels.
    grouped, single = (clients, layer.num_groups, -1, batch), (clients, channels, -1, batch)
    by_channel = (clients, layer.num_groups, channels // layer.num_groups, batch)
    rows = x.reshape(grouped)
    centred = torch.sub(rows, rows.mean(dim=2, keepdim=True), out=rows if place.owned else None)
    # A square and a mean, because vector_norm along a dimension that is not the last is several times slower.
    inverse = (centred * centred).mean(dim=2, keepdim=True).add_(layer.eps).rsqrt_()
    scale = inverse.expand(by_channel)
    if layer.affine:
        scale = scale * weights[f"{name}weight"].view(by_channel[:3]).unsqueeze(3)
    scale = scale.reshape(clients, channels, 1, batch)
    y = centred.view(single) * scale
    if layer.affine:
        y.add_(weights[f"{name}bias"][:, :, None, None])

    def backward(dy: Tensor) -> Tensor:
        dy = dy.reshape(single)
        beta, gamma = dy.sum(dim=2), (dy * centred.view(single)).sum(dim=2)  # [clients, channels, batch]
        if layer.affine:
            place.found[f"{name}bias"] = beta.sum(dim=2)
            place.found[f"{name}weight"] = (gamma.view(by_channel) * inverse).sum(dim=3).flatten(1)
        if not place.asked:
            return dy.view(shape)
        share = scale.squeeze(2) / centred.shape[2]
        shift = (beta * share).view(by_channel).sum(dim=2, keepdim=True)
        slope = (gamma * share).view(by_channel).sum(dim=2, keepdim=True).mul_(inverse.square())
        dx = dy.mul_(scale).view(centred.shape)
        return dx.sub_(centred.mul_(slope)).sub_(shift).view(shape)

    return y.view(shape), backward


def _pair(value: Foreign) -> Pair:
    return (value, value) if isinstance(value, int) else value


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Conv2d: _conv2d,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.MaxPool2d: _max_pool,
}
