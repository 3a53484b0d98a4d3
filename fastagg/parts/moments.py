"""Where an optimizer's moments are kept: fp32, or a byte for each (csrc/math/moments.h)."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg.errors import ConfigError
from fastagg.ops.checks import MOMENT_BLOCK, OPTIMIZERS, moment_blocks
from fastagg.storage import memory


def zeros(optimizer: str, format: str, size: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """The moments of ``optimizer`` for ``size`` parameters before the first step: keywords of
    :func:`fastagg.ops.step_`.

    With ``8bit`` each is uint8, padded to whole blocks of 256, and ``units`` [1 or 2, blocks] holds the blocks' scales:
    of ``m``, and of ``v`` and ``vhat`` together.

    Raises:
        ConfigError: 8 bits on a CUDA device, where there is no kernel for them.
    """
    device, names = torch.device(device), OPTIMIZERS[optimizer]
    if format == "fp32" or not names:
        return {name: memory.zeros(size, device) for name in names}
    if device.type == "cuda":
        raise ConfigError('moments="8bit": there is no CUDA kernel for them; use moments="fp32", or device="cpu"')
    blocks, rows = moment_blocks(size), 2 if "v" in names else 1
    held = {name: memory.empty_bytes(blocks * MOMENT_BLOCK, device).zero_() for name in names}
    return {**held, "units": memory.zeros(rows * blocks, device).view(rows, blocks)}


def taken(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of ``theirs`` in memory like that of ``mine``.

    Raises:
        ValueError: another shape or type.
    """
    found = {}
    for name, like in mine.items():
        given = theirs[name]
        if given.shape != like.shape or given.dtype != like.dtype:
            raise ValueError(f"{name}: expected {like.dtype} {list(like.shape)}, got {given.dtype} {list(given.shape)}")
        fresh = memory.empty_bytes(like.numel() * like.element_size(), like.device)
        found[name] = fresh.view(like.dtype).view(like.shape).copy_(given)
    return found
