"""Where a server's state lives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastagg.errors import ConfigError


def choose(device: torch.device | str | None, params: Any) -> torch.device:
    """The device that was asked for, by default the model's own if that is a CUDA device, else the CPU.

    Raises:
        ConfigError: there is no such device here, or torch cannot use it.
    """
    if device is None:
        found = params.values() if isinstance(params, dict) else params
        if isinstance(params, torch.nn.Module):
            found = params.parameters()
        elif not isinstance(found, (list, tuple)):
            found = list(found) if isinstance(params, dict) else [params]
        first = next(iter(found), None)
        device = first.device if isinstance(first, Tensor) and first.is_cuda else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: {error}") from error
    if chosen.type == "cpu":
        return torch.device("cpu")  # "cpu:0" is the same one, but not equal to it
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {str(device)!r}: torch finds no CUDA device here; use device='cpu'")
        if chosen.index is None:
            chosen = torch.device("cuda", torch.cuda.current_device())
        return chosen
    if chosen.type == "meta":
        raise ConfigError("device: expected one that holds numbers, got 'meta'")
    try:
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {str(device)!r}: torch cannot use it here; use device='cpu'") from error
    return chosen
