"""Models and functions of runs, some of which misbehave: of a module, so that other processes find them."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


class Norm(nn.BatchNorm1d):
    """Takes a lone sample, the rest of an epoch, by its running statistics: a batch of one has no variance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            return super().forward(x)
        return nn.functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)


def drawing(shape: Sequence[int], classes: int) -> nn.Module:
    """Dropout and running statistics. Its masks must come from the dispatch, not from what this process drew before."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Norm(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes))


def train(model: nn.Module, data: Any, task: Any, state: int | None) -> tuple[Any, int]:
    task.descend(model, data)
    return task.delta(model), (state or 0) + 1


def halved(update: dict[str, torch.Tensor], task: Any) -> tuple[dict[str, torch.Tensor], int]:
    """Send half of an update, in 8 bytes."""
    return {name: array / 2 if array.is_floating_point() else array for name, array in update.items()}, 8
