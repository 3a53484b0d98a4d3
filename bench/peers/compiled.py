"""torch.compile, or the reason why it does not run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from problem import Skip


def compiled(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """Compile ``function`` for these arguments, which are afterwards as they were.

    Raises:
        Skip: there is no C++ compiler, or compilation failed.
    """
    torch._dynamo.reset()  # each size is compiled for its own shapes, like a user's only model
    fast = torch.compile(function, fullgraph=True, dynamic=False)
    tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
    try:
        before = [one.detach().clone() for one in tensors]
        fast(*arguments)  # compiling takes a first call
    except Exception as error:  # each layer of the compiler raises its own errors
        raise Skip(f"torch.compile failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
    for tensor, held in zip(tensors, before, strict=True):
        tensor.detach().copy_(held)
    return lambda: fast(*arguments)
