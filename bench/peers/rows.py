"""A client's row in torch: int8, or two values in a byte, with one scale per 256 elements and stochastic rounding, like
the fused arrival."""

from __future__ import annotations

import torch
from problem import Problem
from torch import Tensor

BLOCK = 256
LEVELS = {"fp32": 127, "bf16": 127, "int8": 127, "int4": 7}


def grid(problem: Problem, format: str) -> Tensor:
    """Return an update in which every block of 256 has all levels of the format. Rounding it is exact, so candidates
    with other random numbers must agree."""
    levels = LEVELS[format]
    numbers = torch.arange(problem.size, dtype=torch.int64, device=problem.device)
    return (numbers * 37 % (2 * levels + 1) - levels).to(torch.float32).mul_(2.0**-10)


def whole(size: int) -> int:
    """Return the elements in whole blocks of 256. Only these are compared, because a rest does not have all levels."""
    return size // BLOCK * BLOCK


class Rows:
    """One client's row and its scales."""

    def __init__(self, size: int, format: str, device: torch.device) -> None:
        blocks = -(-size // BLOCK)
        if format in ("fp32", "bf16"):
            self.row = torch.zeros(size, dtype=torch.float32 if format == "fp32" else torch.bfloat16, device=device)
            self.scale = torch.zeros(1, device=device)
        else:
            width, dtype = (BLOCK, torch.int8) if format == "int8" else (BLOCK // 2, torch.uint8)
            self.row = torch.zeros(blocks, width, dtype=dtype, device=device)
            self.row.fill_(0x88 if format == "int4" else 0)
            self.scale = torch.zeros(blocks, 1, device=device)


def difference(g: Tensor, row: Tensor, scale: Tensor, format: str) -> Tensor:
    """``deq(new) - deq(old)``; the row is replaced."""
    if format == "fp32":
        change = g - row
        row.copy_(g)
        return change
    if format == "bf16":
        bits = g.view(torch.int32) + torch.randint_like(row, 1 << 16, dtype=torch.int32)
        new = bits.bitwise_and_(-65536).view(torch.float32)
        change = new - row
        row.copy_(new)
        return change
    levels = 127.0 if format == "int8" else 7.0
    q, s = _encode(g, levels)
    old = row.to(torch.float32) if format == "int8" else _decode4(row)
    change = (q * s).sub_(old.mul_(scale))
    if format == "int8":
        row.copy_(q)
    else:
        nibbles = (q + 8.0).to(torch.uint8)
        row.copy_(nibbles[:, : BLOCK // 2] | (nibbles[:, BLOCK // 2 :] << 4))
    scale.copy_(s)
    return change.view(-1)


def _encode(g: Tensor, levels: float) -> tuple[Tensor, Tensor]:
    blocks = g.view(-1, BLOCK)
    scale = blocks.abs().amax(dim=1, keepdim=True).div_(levels).clamp_min_(2.0**-126)
    q = (blocks / scale).add_(torch.rand_like(blocks).mul_(0.998).add_(0.001)).floor_().clamp_(-levels, levels)
    return q, scale


def _decode4(packed: Tensor) -> Tensor:
    return torch.cat([packed & 15, packed >> 4], dim=1).to(torch.float32).sub_(8.0)
