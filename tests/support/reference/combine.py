"""Robust combinations of rows in float64; see :func:`fastagg.ops.combine`."""

from collections.abc import Sequence

import torch
from torch import Tensor

_F64 = torch.float64


def combine(
    rows: Sequence[Tensor],
    rule: str,
    *,
    weights: Sequence[float] | None = None,
    trim: float = 0.1,
    f: int = 0,
    keep: int | None = None,
    radius: float = 1.0,
    iterations: int = 3,
    smoothing: float = 1e-6,
) -> Tensor:
    """Return the direction, float64 [d]; arguments are those of :func:`fastagg.ops.combine`. A row times its weight is
    rounded to fp32, as in the kernels."""
    u = torch.stack([row.reshape(-1).to(_F64) for row in rows])
    if weights is not None:
        w = torch.tensor(list(weights), dtype=torch.float32, device=u.device)
        u = (w[:, None] * u.to(torch.float32)).to(_F64)
    n = len(u)
    if rule in ("median", "trimmed"):
        cut = (n - 1) // 2 if rule == "median" else int(trim * n)
        return u.sort(0).values[cut : n - cut].mean(0)
    if rule == "mean_around_median":
        middle = u.sort(0).values
        median = (middle[(n - 1) // 2] + middle[n // 2]) / 2
        near = (middle - median).abs().argsort(dim=0, stable=True)
        return middle.gather(0, near[: n - f]).mean(0)
    if rule in ("krum", "multi_krum"):
        apart = torch.stack([(u - one).square().sum(1) for one in u])
        scores = apart.sort(1).values[:, 1 : n - f - 1].sum(1)
        kept = 1 if rule == "krum" else min(n, keep or n - f)
        return u[scores.argsort(dim=0, stable=True)[:kept]].mean(0)
    point = torch.zeros_like(u[0])
    for _ in range(iterations):
        away = u - point
        if rule == "geometric_median":
            near = 1 / away.norm(dim=1).clamp_min(smoothing)
            point = near @ u / near.sum()
        else:
            assert rule == "centered_clip", rule
            point = point + (away * (radius / away.norm(dim=1).clamp_min(radius))[:, None]).mean(0)
    return point
