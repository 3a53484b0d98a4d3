"""Checks what the methods of a user's own rule return. Only directions and fastagg/server call these functions.

Each function returns the checked value in the engine's form, or raises a ConfigError that names the rule and the
method.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastagg import _checks
from fastagg.errors import ConfigError


def number(rule: object, method: str, value: object) -> float:
    """Return ``value`` if it is a finite number of at least 0: a weight or a rate."""
    return _checks.number(f"{type(rule).__name__}.{method}: what it returned", value, least=0)


def weight(rule: object, method: str, value: object) -> float | None:
    """Return a weight, or None if ``value`` is None. None drops the update."""
    return None if value is None else number(rule, method, value)


def pair(rule: object, method: str, value: object) -> tuple[object, dict[str, Tensor]]:
    """Return a vector and the rule's new state. The vector is not checked here, but by :func:`vector`."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", "a pair: a vector and the new state", value))
    return value[0], tensors(rule, method, value[1])


def vector(rule: object, method: str, value: object, size: int, device: torch.device) -> Tensor:
    """Return ``value`` if it is an fp32 vector of ``size`` elements on ``device``."""
    good = isinstance(value, Tensor) and value.dtype is torch.float32 and tuple(value.shape) == (size,)
    if not isinstance(value, Tensor) or not good or value.device != device:
        what = f"a float32 vector of {size} elements on {device}"
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", what, value))
    return value.detach().contiguous()


def tensors(rule: object, method: str, value: object) -> dict[str, Tensor]:
    """Return ``value`` if it has tensors by name: a rule's state, or the tensors that the rule sends with a task."""
    named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if not isinstance(value, Mapping) or not named or not all(isinstance(tensor, Tensor) for tensor in value.values()):
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", "a dict of tensors by name", value))
    return {name: tensor.detach() for name, tensor in value.items()}
