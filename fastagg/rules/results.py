"""Checks the results of the methods of a user's own rule. Only directions and the extension call these functions.

Each function returns the value in the engine's form. Its ConfigError names the rule and the method.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fastagg import _checks
from fastagg.errors import ConfigError


def number(rule: object, method: str, value: object) -> float:
    """Return a weight or a rate that is finite and at least 0."""
    return _checks.number(f"{type(rule).__name__}.{method}: what it returned", value, least=0)


def weight(rule: object, method: str, value: object) -> float | None:
    """Return a weight. None stays None, and drops the update."""
    return None if value is None else number(rule, method, value)


def pair(rule: object, method: str, value: object) -> tuple[object, dict[str, Tensor]]:
    """Return a vector and the rule's new state. Only the state is checked here. :func:`vector` checks the vector."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", "a pair: a vector and the new state", value))
    return value[0], tensors(rule, method, value[1])


def vector(rule: object, method: str, value: object, size: int, device: torch.device) -> Tensor:
    """Return an fp32 vector of this size on the server's device."""
    good = isinstance(value, Tensor) and value.dtype is torch.float32 and tuple(value.shape) == (size,)
    if not isinstance(value, Tensor) or not good or value.device != device:
        what = f"a float32 vector of {size} elements on {device}"
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", what, value))
    return value.detach().contiguous()


def tensors(rule: object, method: str, value: object) -> dict[str, Tensor]:
    """Return tensors by name: a rule's state, or the vectors that the rule sends with a task."""
    named = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
    if not isinstance(value, Mapping) or not named or not all(isinstance(tensor, Tensor) for tensor in value.values()):
        raise ConfigError(_checks.wrong(f"{type(rule).__name__}.{method}", "a dict of tensors by name", value))
    return {name: tensor.detach() for name, tensor in value.items()}
