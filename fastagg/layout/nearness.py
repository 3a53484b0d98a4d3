"""The commonest mistake: a trained model sent where its difference from the model sent out belongs."""

from __future__ import annotations

from torch import Tensor

from fastagg._build import native
from fastagg.ops.checks import update_of
from fastagg.storage.pieces import Pieces


def nearer_to_model(pieces: Pieces, flat: Tensor) -> bool:
    """Whether an update u is far nearer to the model x than to zero: ``|u - x| < 0.1*|u|``.

    A difference, or a gradient, is as far from the model as the model is from zero. Looks at no more than 1,024
    elements, evenly spread; at 16 of them first, which is all it takes where nothing is wrong.

    Args:
        pieces: u, d elements.
        flat: x, [d], fp32.

    Returns:
        False, too, for an update that is zero there or not finite, and where either is not on the CPU: nobody waits for
        a device for the sake of a warning.
    """
    if pieces.size != flat.numel() or pieces.device.type != "cpu" or not flat.is_cpu:
        return False
    found: bool = native.nearly(update_of(pieces), flat.data_ptr())
    return found
