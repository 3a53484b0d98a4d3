"""torch.compile, or the reason why it does not run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from problem import Skip


def compiled(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """Compile ``function`` for these arguments and run it once.

    Raises:
        Skip: there is no C++ compiler, or compilation failed.
    """
    torch._dynamo.reset()  # each size is compiled for its own shapes, like a user's only model
    fast = torch.compile(function, fullgraph=True, dynamic=False)
    try:
        fast(*arguments)
    except Exception as error:  # each layer of the compiler raises its own errors
        raise Skip(f"torch.compile failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}") from error
    return lambda: fast(*arguments)
