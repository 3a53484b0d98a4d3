"""Compares how many elements should share a scale: python bench/scale_block.py

It prints the relative rounding error (root mean square over root mean square) and the bytes per element of int8 and
int4 rows, for Gaussian numbers, for heavy tails (Student's t, 3 degrees of freedom) and for a gradient of a small
network.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn


def main() -> int:
    """Print the table."""
    torch.manual_seed(0)
    data = {
        "Gaussian": torch.randn(1 << 20),
        "heavy tails": torch.distributions.StudentT(3.0).sample((1 << 20,)),
        "a gradient": gradient(),
    }
    print("| levels | block | bytes per element | " + " | ".join(data) + " |")
    print("|---|---|---|" + "---|" * len(data))
    for levels, bits in ((127, 8), (7, 4)):
        for block in (64, 128, 256, 512):
            errors = " | ".join(f"{error(values, block, levels):.2%}" for values in data.values())
            print(f"| {2 * levels + 1} | {block} | {bits / 8 + 4 / block:.4f} | {errors} |")
    return 0


def error(values: Tensor, block: int, levels: int) -> float:
    """Return the relative error of unbiased rounding with one scale for ``block`` elements."""
    rows = values[: values.numel() // block * block].view(-1, block)
    scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / levels
    stored = torch.floor(rows / scale + torch.rand_like(rows)) * scale
    return float((stored - rows).norm() / rows.norm())


def gradient() -> Tensor:
    """Return one batch's gradient of a three-layer network. Its layers have different scales."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    nn.functional.cross_entropy(model(torch.randn(50, 784)), torch.randint(0, 10, (50,))).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


if __name__ == "__main__":
    sys.exit(main())
