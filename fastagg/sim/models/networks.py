"""Small classifiers of images. The MLP takes data of any fixed shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fastagg.errors import ConfigError


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected with ReLU. Without hidden layers it is logistic regression."""
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int, channels: Sequence[int] = (16, 32), norm: str = "batch") -> nn.Module:
    """3x3 convolutions with normalisation and ReLU, each but the first halves the image; then a linear layer.

    norm: ``batch``, ``group`` (groups of eight channels) or ``none``.
    """
    depth, height, width = image_shape("cnn", shape)
    layers: list[nn.Module] = []
    for number, after in enumerate(channels):
        stride = 1 if number == 0 else 2
        layers += [nn.Conv2d(depth, after, 3, stride, padding=1, bias=norm == "none"), *_norm(norm, after), nn.ReLU()]
        height, width = -(-height // stride), -(-width // stride)
        depth = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * width, classes))


def _norm(norm: str, channels: int) -> list[nn.Module]:
    if norm == "group":
        return [nn.GroupNorm(max(1, math.gcd(channels, channels // 8)), channels)]
    return [nn.BatchNorm2d(channels)] if norm == "batch" else []


def image_shape(name: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return ``shape`` if it is an image's. Otherwise ConfigError with the model's name."""
    if len(shape) != 3:
        raise ConfigError(
            f"model {name!r} needs images [channels, height, width], the data's inputs are {tuple(shape)}"
        )
    return shape[0], shape[1], shape[2]
