"""Exact sums: their terms as whole numbers."""

import torch
from torch import Tensor

from fastagg.storage.pieces import Pieces, as_pieces


def exact_terms(update: Tensor | list[Tensor] | Pieces, weight: float = 1.0) -> Tensor:
    """Return ``round(weight*update)``, int64 [d]. The product is rounded to fp32, and then to the nearest whole number,
    ties to even. An exact sum is the sum of these whole numbers."""
    by = float(torch.tensor(weight, dtype=torch.float32, device="cpu"))
    product = (by * as_pieces(update).flat(torch.float64)).to(torch.float32)  # the product of two floats is exact here
    return product.to(torch.float64).round().to(torch.int64)
