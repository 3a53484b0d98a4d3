"""Models that misbehave in a worker: functions of a module, so that other processes find them."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn


class Deadly(nn.Module):
    """Kills its process while it trains, as the operating system does: once if ``flag`` goes with it."""

    def __init__(self, flag: str, once: bool) -> None:
        super().__init__()
        self.flag, self.once = Path(flag), once

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.flag.exists():
            if self.once:
                try:
                    self.flag.unlink()
                except FileNotFoundError:  # the worker beside this one was first, and dies
                    return x
            os.kill(os.getpid(), signal.SIGKILL)
        return x


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("the weights went astray")
        return x


def network(shape: Sequence[int], classes: int, first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


def deadly(shape: Sequence[int], classes: int, flag: str, once: bool = True) -> nn.Module:
    return network(shape, classes, Deadly(flag, once))


def failing(shape: Sequence[int], classes: int) -> nn.Module:
    return network(shape, classes, Failing())
