"""The package's own networks. A network takes inputs [batch, *shape], and returns logits [batch, classes]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fastagg.errors import ConfigError
from fastagg.sim.seeds import seeded


def build(
    name: str, shape: Sequence[int], classes: int, widths: Sequence[int], seed: int, norm: str = "batch"
) -> nn.Module:
    """Return the model ``name`` with weights drawn from ``seed``. Torch's global generator does not change.

    widths: the sizes of the MLP's hidden layers, or the numbers of the CNN's channels. norm: as in :func:`cnn`.
    ConfigError: the model cannot take inputs of this shape, or does not have this ``norm``.
    """
    if norm != "batch" and name != "cnn":
        raise ConfigError(f"model.norm is for the model cnn, got {name!r}")
    with seeded(seed, "model"):
        if name == "cnn":
            return cnn(shape, classes, widths, norm)
        return mlp(shape, classes, () if name == "logistic" else widths)


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Return a fully connected network with ReLU, for inputs of any shape. ``hidden``: the sizes of the hidden layers.
    Without hidden layers the network is logistic regression."""
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int, channels: Sequence[int] = (16, 32), norm: str = "batch") -> nn.Module:
    """Return a network of 3x3 convolutions with normalization and ReLU, and a final linear layer. Each convolution
    except the first halves the image's height and width.

    norm: ``batch``, ``group`` (groups of eight channels if eight divides the number of channels) or ``none``.
    """
    depth, height, width = image_shape("cnn", shape)
    layers: list[nn.Module] = []
    for number, after in enumerate(channels):
        stride = 1 if number == 0 else 2
        layers += [nn.Conv2d(depth, after, 3, stride, padding=1, bias=norm == "none")]
        layers += [nn.GroupNorm(max(1, math.gcd(after, after // 8)), after)] if norm == "group" else []
        layers += [*([nn.BatchNorm2d(after)] if norm == "batch" else []), nn.ReLU()]
        height, width = -(-height // stride), -(-width // stride)
        depth = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * width, classes))


def image_shape(name: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return ``shape`` if it has three dimensions. Otherwise raise ConfigError with the model's name."""
    if len(shape) != 3:
        raise ConfigError(
            f"model {name!r} needs images [channels, height, width], the data's inputs are {tuple(shape)}"
        )
    return shape[0], shape[1], shape[2]
