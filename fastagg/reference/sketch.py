"""Random linear sketches in plain torch; csrc/cpu/cpu.h defines them."""

from __future__ import annotations

import torch
from torch import Tensor

from fastagg.reference.rows import philox
from fastagg.storage.pieces import Pieces, as_pieces

_MASK = 0xFFFFFFFF


def sketch(update: Tensor | list[Tensor] | Pieces, k: int, seed: int = 0) -> Tensor:
    """See :func:`fastagg.ops.sketch`."""
    u = as_pieces(update).flat(torch.float64).cpu()
    blocks = -(-u.numel() // 1024)
    padded = torch.zeros(blocks * 1024, dtype=torch.float64, device="cpu")
    padded[: u.numel()] = u
    block = torch.arange(blocks, dtype=torch.int64, device="cpu")
    zero = torch.zeros_like(block)
    key = (seed & _MASK, (seed >> 32) & _MASK)
    calls = [philox((block & _MASK, zero + ((block >> 32 << 7) | c), zero + _MASK, zero), key) for c in range(9)]
    words = torch.stack([word for call in calls[:8] for word in call], dim=1)  # [blocks, 32]
    signs = 1 - 2 * ((words[:, :, None] >> torch.arange(32, dtype=torch.int64, device="cpu")) & 1).reshape(blocks, 1024)
    place = (calls[8][0] * k) >> 32
    bucket = (place[:, None] + torch.arange(1024, dtype=torch.int64, device="cpu")) % k
    out = torch.zeros(k, dtype=torch.float64, device="cpu")
    return out.index_add_(0, bucket.reshape(-1), (signs * padded.view(blocks, 1024)).reshape(-1))
