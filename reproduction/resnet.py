"""ResNet-18 for images of 32x32 pixels, with BatchNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from shared import exactly
from torch import nn

from fastagg.sim.models import image_shape


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut around them. If the shape changes, the shortcut is a 1x1 convolution."""

    fused = True

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(shape: Sequence[int], classes: int, channels: Sequence[int] = (64, 128, 256, 512)) -> nn.Module:
    """Four stages of two blocks with so many ``channels``, then the mean over the image and a linear layer."""
    depth = image_shape("resnet:resnet18", shape)[0]
    exactly("resnet:resnet18", channels, 4)
    layers: list[nn.Module] = [
        nn.Conv2d(depth, channels[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(),
    ]
    before = channels[0]
    for stage, after in enumerate(channels):
        layers += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
