"""Layers of stacked models for any data, x [clients, ..., batch], with their backward functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastagg._types import Foreign

# takes the gradient of the output, which it may overwrite; returns that of the input
Backward = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Place:
    """What a layer needs to know: the prefix of its names, all weights, the samples that count, where gradients go.

    Attributes:
        name: prefix of the layer's names in ``weights``.
        weights: by name, [clients, *shape].
        keep: [clients, batch], 1 for samples and 0 for the padding of a shorter batch.
        count: [clients, 1], the number of samples.
        found: gradients by name; the backward function adds the layer's own.
        asked: whether the backward function must compute the gradient of the layer's input.
        owned: whether the layer may overwrite its input.
    """

    name: str
    weights: Mapping[str, Tensor]
    keep: Tensor
    count: Tensor
    found: dict[str, Tensor]
    asked: bool
    owned: bool


Layer = Callable[[Foreign, Tensor, Place], tuple[Tensor, Backward]]


def product(x: Tensor, place: Place, *, bias: bool) -> tuple[Tensor, Backward]:
    """Multiply the layer's weights, as matrices [clients, out, in], by x [clients, in, columns]."""
    weight = place.weights[f"{place.name}weight"]
    matrix = weight.flatten(2)
    y = torch.baddbmm(place.weights[f"{place.name}bias"].unsqueeze(2), matrix, x) if bias else torch.bmm(matrix, x)

    def backward(dy: Tensor) -> Tensor:
        place.found[f"{place.name}weight"] = torch.bmm(dy, x.transpose(1, 2)).view_as(weight)
        if bias:
            place.found[f"{place.name}bias"] = dy.sum(dim=2)
        return torch.bmm(matrix.transpose(1, 2), dy) if place.asked else dy

    return y, backward


def _linear(layer: nn.Linear, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    return product(x, place, bias=layer.bias is not None)


def _flatten(layer: nn.Flatten, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    return x.flatten(1, -2), lambda dy: dy.view_as(x)


def _relu(layer: nn.ReLU, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    y = x.relu_() if place.owned else x.relu()
    return y, lambda dy: torch.ops.aten.threshold_backward.grad_input(dy, y, 0, grad_input=dy)


def _tanh(layer: nn.Tanh, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    y = x.tanh()
    return y, lambda dy: torch.ops.aten.tanh_backward(dy, y)


def _identity(layer: nn.Identity, x: Tensor, place: Place) -> tuple[Tensor, Backward]:
    return x, lambda dy: dy


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Linear: _linear,
    nn.Flatten: _flatten,
    nn.ReLU: _relu,
    nn.Tanh: _tanh,
    nn.Identity: _identity,
}
# Layers whose backward function needs their unchanged output.
KEEPING = (nn.ReLU, nn.Tanh)
# Layers that return their input as output.
ALIASES = (nn.Flatten, nn.Identity)
