"""Makes the moments of an optimizer, in fp32 or in 8 bits (csrc/math/moments.h). Servers and FedEcho use it."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg.ops.checks import MOMENT_BLOCK, OPTIMIZERS, moment_blocks
from fastagg.storage import memory


def zeros(optimizer: str, format: str, size: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Return the moments of ``optimizer`` for ``size`` parameters before the first step, as keywords of
    :func:`fastagg.ops.step_`.

    With ``8bit`` each moment is a uint8 vector, padded to whole blocks of 256. ``units`` [1 or 2, blocks] holds the
    scales of the blocks. Row 0 is for ``m``. If the optimizer has ``v``, row 1 is for ``v`` and ``vhat``.
    """
    device, names = torch.device(device), OPTIMIZERS[optimizer]
    if format == "fp32" or not names:
        return {name: memory.zeros(size, device) for name in names}
    blocks, rows = moment_blocks(size), 2 if "v" in names else 1
    held = {name: memory.empty_bytes(blocks * MOMENT_BLOCK, device).zero_() for name in names}
    return {**held, "units": memory.zeros(rows * blocks, device).view(rows, blocks)}
