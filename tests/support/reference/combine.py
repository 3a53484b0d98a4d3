"""Robust combinations of rows in float64; see :func:`fastagg.ops.combine`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.formulas import robust

USUAL = {"trim": 0.1, "f": 0, "iterations": 3, "smoothing": 1e-6, "radius": 1.0}  # where nothing is given


def combine(rows: Sequence[Tensor], rule: str, *, weights: Sequence[float] | None = None, **how: Any) -> Tensor:
    """The direction, float64 [d]. A row times its weight is rounded to fp32, as in the kernels."""
    u = np.stack([row.reshape(-1).double().numpy() for row in rows])
    if weights is not None:
        u = (np.float32(weights)[:, None] * u.astype(np.float32)).astype(float)
    return torch.from_numpy(robust({**USUAL, **how, "rule": rule}, u))
