"""Forms in which an update may come, of arrays by name with BatchNorm's statistics."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastagg.model import ModelState

Arrays = dict[str, Tensor]


def strided(given: Tensor) -> Tensor:
    """The same numbers, not one after the other."""
    return torch.stack([given, given], dim=-1)[..., 0]


def parameters(given: Arrays) -> list[Tensor]:
    return [value for name, value in given.items() if not name.startswith("bn.")]


def joined(given: Arrays) -> Tensor:
    return torch.cat([value.reshape(-1) for value in parameters(given)])


def vectors(given: Arrays) -> ModelState:
    running = [value for name, value in given.items() if name.startswith("bn.running")]
    return ModelState(joined(given), torch.cat(running), [given["bn.num_batches_tracked"]])


def cast(given: Arrays, dtype: torch.dtype) -> Arrays:
    return {name: value if name.startswith("bn.") else value.to(dtype) for name, value in given.items()}


def unusual(given: Arrays) -> Arrays:
    """Statistics and counters in types that are not the model's own."""
    changed = {name: value.double() for name, value in given.items() if "running" in name}
    return {**given, **changed, "bn.num_batches_tracked": given["bn.num_batches_tracked"].int()}


def read_only(given: Tensor) -> Any:
    return np.frombuffer(given.numpy().tobytes(), given.numpy().dtype).reshape(given.shape)


# Made of an update, and whether its statistics come along.
FORMS: dict[str, tuple[Callable[[Arrays], Any], bool]] = {
    "dict": (lambda u: u, True),
    "OrderedDict": (OrderedDict, True),
    "another order": (lambda u: dict(reversed(u.items())), True),
    "list": (lambda u: list(u.values()), True),
    "tuple of parameters": (lambda u: tuple(parameters(u)), False),
    "NumPy": (lambda u: {k: v.numpy() for k, v in u.items()}, True),
    "both": (lambda u: [v.numpy() if i % 2 else v for i, v in enumerate(u.values())], True),
    "read-only": (lambda u: {k: read_only(v) for k, v in u.items()}, True),
    "flat": (joined, False),
    "flat NumPy": (lambda u: joined(u).numpy(), False),
    "vectors": (vectors, True),
    "strided": (lambda u: {k: strided(v) for k, v in u.items()}, True),
    "strided NumPy": (lambda u: {k: strided(v).numpy() for k, v in u.items()}, True),
    "requires grad": (lambda u: {k: v.requires_grad_(v.is_floating_point()) for k, v in u.items()}, True),
    "parameters": (lambda u: {k: nn.Parameter(v) if v.is_floating_point() else v for k, v in u.items()}, True),
    "fp16": (lambda u: cast(u, torch.float16), True),
    "bf16": (lambda u: cast(u, torch.bfloat16), True),
    "flat bf16": (lambda u: joined(u).bfloat16(), False),
    "unusual types": (unusual, True),
}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "flat bf16": torch.bfloat16}


def overwrite(answer: Any) -> None:
    """The sender's memory is its own again."""
    if isinstance(answer, (Tensor, np.ndarray)):
        if isinstance(answer, Tensor) or answer.flags.writeable:
            (answer.detach() if isinstance(answer, Tensor) else answer)[...] = 7
    elif isinstance(answer, (dict, list, tuple)):
        for one in answer.values() if isinstance(answer, dict) else answer:
            overwrite(one)
