"""A digest of results: what it is equal for has the same names, types and bits."""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def digest(value: Any) -> str:
    """Of nested tensors and numbers: names, types and bits."""
    found = blake2b(digest_size=12)

    def add(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            found.update(f"{one.dtype} {one.device} {list(one.shape)}".encode())
            found.update(one.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if one.numel() else b"")
        elif isinstance(one, np.ndarray):
            found.update(f"{one.dtype} {one.shape}".encode() + one.tobytes())
        elif isinstance(one, dict):
            for name, item in sorted(one.items(), key=str):
                if name not in ("lives", "incarnation", "ids", "id"):
                    add((str(name), item))
        elif isinstance(one, (list, tuple)):
            found.update(f"{len(one)}".encode())
            for item in one:
                add(item)
        else:
            found.update(repr(one).encode())

    add(value)
    return found.hexdigest()
