"""Detects the most common mistake: a trained model sent instead of its difference from the model that was sent out."""

from __future__ import annotations

from torch import Tensor

from fastagg._build import native
from fastagg.ops.checks import update_of
from fastagg.storage.pieces import Pieces


def nearer_to_model(pieces: Pieces, flat: Tensor) -> bool:
    """Return whether an update u is far nearer to the model x than to zero: ``|u - x| < 0.1*|u|``.

    A difference, or a gradient, is about as far from the model as the model is from zero. It compares at most 1,024
    evenly spaced elements. It begins with 16 of them, which are enough for an ordinary update.

    Args:
        pieces: u, d elements.
        flat: x, [d], fp32.

    Returns:
        False also for an update that is zero there or not finite, and if one of both is not on the CPU: a warning is
        not worth waiting for a device.
    """
    if pieces.size != flat.numel() or pieces.device.type != "cpu" or not flat.is_cpu:
        return False
    found: bool = native.nearly(update_of(pieces), flat.data_ptr())
    return found
