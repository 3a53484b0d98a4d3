"""Classifiers. Each takes inputs [batch, *shape] and returns logits [batch, classes]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from fastagg.errors import ConfigError
from fastagg.sim.models.networks import cnn, mlp
from fastagg.sim.seeds import integer

__all__ = ["build", "cnn", "mlp"]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw weights from ``seed``. Its global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(seed, "model"))
        yield


def build(
    name: str, shape: Sequence[int], classes: int, widths: Sequence[int], seed: int, norm: str = "batch"
) -> nn.Module:
    """Return model ``name`` with weights from ``seed``. Torch's global generator does not change.

    widths: hidden layers of the MLP, channels of the CNN. ConfigError if the model cannot be used with the data.
    """
    if norm != "batch" and name != "cnn":
        raise ConfigError(f"model.norm is for the model cnn, got {name!r}")
    with seeded(seed):
        if name == "cnn":
            return cnn(shape, classes, widths, norm)
        return mlp(shape, classes, () if name == "logistic" else widths)
