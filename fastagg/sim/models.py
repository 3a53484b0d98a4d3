"""Small classifiers. Each takes inputs [batch, *shape] and returns logits [batch, classes]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from fastagg.errors import ConfigError
from fastagg.sim.seeds import integer


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected with ReLU; no hidden layer at all is logistic regression."""
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int, channels: Sequence[int] = (16, 32)) -> nn.Module:
    """3x3 convolutions with BatchNorm and ReLU, each after the first halving the image; a linear layer."""
    if len(shape) != 3:
        raise ConfigError(f"model 'cnn' needs images [channels, height, width], the data's inputs are {tuple(shape)}")
    depth, height, width = shape
    layers: list[nn.Module] = []
    for number, after in enumerate(channels):
        stride = 1 if number == 0 else 2
        layers += [
            nn.Conv2d(depth, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        height, width = -(-height // stride), -(-width // stride)
        depth = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth * height * width, classes))


def build(name: str, shape: Sequence[int], classes: int, widths: Sequence[int], seed: int) -> nn.Module:
    """Return model ``name`` ("logistic", "mlp", "cnn") with weights from ``seed``, torch's generator left alone.

    widths: hidden layers of the MLP or channels of the CNN; not used by "logistic". ConfigError on another
    name.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(seed, "model"))
        if name == "logistic":
            return mlp(shape, classes, ())
        if name == "mlp":
            return mlp(shape, classes, widths)
        if name == "cnn":
            return cnn(shape, classes, widths)
    raise ConfigError(f"model {name!r} is unknown, expected logistic, mlp or cnn")
