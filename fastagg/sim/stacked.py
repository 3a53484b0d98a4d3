"""Several small models of one architecture run at once: every layer gets a stack of weights, one per client.

Activations are [clients, batch, ...], weights [clients, *shape]. Batches may be ragged: ``keep`` [clients, batch] is 1
for samples and 0 for padding, which only BatchNorm has to know. Images lie in memory channels last, so that a
convolution is a product of patches with weights and nothing is transposed between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

Weights = Mapping[str, Tensor]  # by name, [clients, *shape]
Layer = Callable[[Any, str, Tensor, Weights, Tensor], Tensor]


def _linear(layer: nn.Linear, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    weight = weights[f"{name}weight"].transpose(1, 2)
    if layer.bias is None:
        return torch.bmm(x, weight)
    return torch.baddbmm(weights[f"{name}bias"].unsqueeze(1), x, weight)


def _conv2d(layer: nn.Conv2d, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    bias = None if layer.bias is None else weights[f"{name}bias"]
    out = _Convolution.apply(_last(x), weights[f"{name}weight"], bias, _pair(layer.stride), _pair(layer.padding))
    return _first(out)


def _batch_norm(layer: nn.BatchNorm2d, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    """Statistics of each client's own samples, and its running ones follow (in ``weights``, in place)."""
    places = x.shape[-1] * x.shape[-2]
    rows = keep.repeat_interleave(places, dim=1)  # [clients, batch*places]
    count = keep.sum(dim=1, keepdim=True) * places
    flat = _last(x).flatten(1, 3)  # [clients, batch*places, channels]
    gamma = weights[f"{name}weight"] if layer.affine else torch.ones_like(weights[f"{name}running_mean"])
    beta = weights[f"{name}bias"] if layer.affine else torch.zeros_like(gamma)
    out, mean, variance = _Normalisation.apply(flat, rows, count, gamma, beta, layer.eps)
    momentum = layer.momentum or 0.0
    weights[f"{name}running_mean"].lerp_(mean, momentum)
    weights[f"{name}running_var"].lerp_(variance * (count / (count - 1).clamp_min(1)), momentum)
    weights[f"{name}num_batches_tracked"].add_(1)
    return _first(out.view(*x.shape[:2], *x.shape[3:], x.shape[2]))


def _max_pool(layer: nn.MaxPool2d, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    pooled = layer(x.flatten(0, 1))
    return pooled.unflatten(0, x.shape[:2])


def _pointwise(layer: nn.Module, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    out: Tensor = layer(x)
    return out


def _flatten(layer: nn.Flatten, name: str, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    return x.flatten(2)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _max_pool,
    nn.Flatten: _flatten,
    nn.ReLU: _pointwise,
    nn.Tanh: _pointwise,
    nn.Identity: _pointwise,
}


def refusal(module: nn.Module) -> str | None:
    """Why this module cannot run stacked; None if it can."""
    for name, layer in _layers(module):
        where = name.rstrip(".") or "the model itself"
        if type(layer) not in LAYERS:
            return f"a layer {type(layer).__name__} ({where}) is not run in stacks"
        if isinstance(layer, nn.Conv2d) and (
            layer.groups != 1
            or layer.padding_mode != "zeros"
            or isinstance(layer.padding, str)
            or _pair(layer.dilation) != (1, 1)
        ):
            return f"the convolution {where} has groups, dilation or a padding that is not run in stacks"
        if isinstance(layer, nn.BatchNorm2d) and (not layer.track_running_stats or layer.momentum is None):
            return f"the BatchNorm {where} keeps no exponential running statistics"
        if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1):
            return f"the layer {where} flattens some dimensions only"
    if any(not p.requires_grad or p.dtype is not torch.float32 for p in module.parameters()):
        return "some parameters do not train, or are not fp32"
    return None


def forward(module: nn.Module, x: Tensor, weights: Weights, keep: Tensor) -> Tensor:
    """Logits [clients, batch, classes] of every client's own weights for its own batch ``x``."""
    for name, layer in _layers(module):
        x = LAYERS[type(layer)](layer, name, x, weights, keep)
    return x


class _Convolution(torch.autograd.Function):
    """x [clients, batch, height, width, depth] with weights [clients, out, depth, *kernel]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        clients, out, depth, *kernel = weight.shape
        padded = functional.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
        windows = padded.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # [..., h, w, depth, *kernel]
        batch, height, width = windows.shape[1:4]
        patches = windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(clients, -1, kernel[0] * kernel[1] * depth)
        matrix = weight.permute(0, 3, 4, 2, 1).reshape(clients, -1, out)
        y = torch.bmm(patches, matrix) if bias is None else torch.baddbmm(bias.unsqueeze(1), patches, matrix)
        ctx.save_for_backward(patches, matrix)
        ctx.shapes = (weight.shape, padded.shape, x.shape, (batch, height, width), stride, padding)
        return y.view(clients, batch, height, width, out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        patches, matrix = ctx.saved_tensors
        (clients, out, depth, kh, kw), padded, inner, (batch, height, width), stride, padding = ctx.shapes
        flat = dy.reshape(clients, -1, out)
        weight = torch.bmm(patches.transpose(1, 2), flat).view(clients, kh, kw, depth, out).permute(0, 4, 3, 1, 2)
        bias = flat.sum(dim=1) if ctx.needs_input_grad[2] else None
        if not ctx.needs_input_grad[0]:
            return None, weight, bias, None, None
        back = torch.bmm(flat, matrix.transpose(1, 2)).view(clients, batch, height, width, kh, kw, depth)
        dx = dy.new_zeros(padded)
        for i in range(kh):
            for j in range(kw):
                rows, columns = slice(i, i + stride[0] * height, stride[0]), slice(j, j + stride[1] * width, stride[1])
                dx[:, :, rows, columns] += back[:, :, :, :, i, j]
        return (
            dx[:, :, padding[0] : padding[0] + inner[2], padding[1] : padding[1] + inner[3]],
            weight, bias, None, None,
        )  # fmt: skip


class _Normalisation(torch.autograd.Function):
    """x [clients, rows, channels] over the rows that count (``rows`` is 1); also their mean and biased variance."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, count: Tensor, gamma: Tensor, beta: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = rows.unsqueeze(1)  # [clients, 1, rows]
        mean = torch.bmm(weight, x).squeeze(1) / count
        centred = x - mean.unsqueeze(1)
        variance = torch.bmm(weight, centred.square()).squeeze(1) / count
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(centred, rows, count, gamma, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(beta.unsqueeze(1), centred, (gamma * inverse).unsqueeze(1)), mean, variance

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dy: Tensor, _mean: Tensor, _variance: Tensor
    ) -> tuple[Tensor, None, None, Tensor, Tensor, None]:
        centred, rows, count, gamma, inverse = ctx.saved_tensors
        # Padding sends no gradient back: the loss gives it none, and below it is given none.
        beta = dy.sum(dim=1)
        gamma_gradient = (dy * centred).sum(dim=1) * inverse
        dx = torch.addcmul(dy - (beta / count).unsqueeze(1), centred, (-gamma_gradient * inverse / count).unsqueeze(1))
        dx *= (gamma * inverse).unsqueeze(1)
        dx *= rows.unsqueeze(2)
        return dx, None, None, gamma_gradient, beta, None


def _last(x: Tensor) -> Tensor:
    """[clients, batch, channels, height, width] as a contiguous tensor with the channels last."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _first(x: Tensor) -> Tensor:
    """The channels first again, without moving anything."""
    return x.permute(0, 1, 4, 2, 3)


def _layers(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if not isinstance(module, nn.Sequential):
        yield prefix, module
        return
    for name, layer in module.named_children():
        yield from _layers(layer, f"{prefix}{name}.")


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
