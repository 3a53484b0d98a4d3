"""The commonest mistake: a trained model sent where its difference from the model sent out belongs."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg.storage.pieces import Pieces, as_tensor

_FEW, _MANY = 16, 1024


def nearer_to_model(pieces: Pieces, flat: Tensor) -> bool:
    """Whether an update u is far nearer to the model x than to zero: ``|u - x| < 0.1*|u|``.

    A difference, or a gradient, is as far from the model as the model is from zero. Looks at no more than 1,024
    elements, evenly spread; at 16 of them first, which is all it takes where nothing is wrong.

    Args:
        pieces: u, d elements.
        flat: x, [d], any floating-point type.

    Returns:
        False, too, for an update that is zero there or not finite, and where either is not on the CPU: nobody waits for
        a device for the sake of a warning.
    """
    if not pieces.size or pieces.size != flat.numel() or pieces.device.type != "cpu" or not flat.is_cpu:
        return False
    apart, length = _distances(pieces, flat, _FEW)
    if not apart <= 0.5 * length:
        return False
    apart, length = _distances(pieces, flat, _MANY)
    return apart < 0.1 * length


def _distances(pieces: Pieces, flat: Tensor, most: int) -> tuple[float, float]:
    """``|u - x|`` and ``|u|`` on every so many elements, ``most`` of them at most."""
    every = -(-pieces.size // most)
    sample, first = [], 0  # in the next piece
    for owner, (_, size, _) in zip(pieces.owners, pieces.native, strict=True):
        if first >= size:
            first -= size
            continue
        count = -(-(size - first) // every)
        if isinstance(owner, Tensor):  # contiguous, as pieces are
            sample.append(owner.as_strided((count,), (every,), owner.storage_offset() + first))
        else:  # cut first: a read-only array, or one of bfloat16, is copied on its way to torch
            sample.append(as_tensor(owner.reshape(-1)[first::every]))
        first += count * every - size
    update = torch.cat(sample).to(torch.float64)
    return float(torch.dist(update, flat.detach()[::every])), float(update.norm())
