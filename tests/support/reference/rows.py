"""How a client's row is stored, in plain torch, with the bits of csrc/math/philox.h and rows.h."""

import torch
from torch import Tensor

from fastagg._build import native

SCALE_BLOCK = native.scale_block  # elements that share one fp32 scale (csrc/math/rows.h)
_CALLS = 128  # Philox calls for a block of 1,024 elements
_MASK = 0xFFFFFFFF
_SMALLEST_SCALE = 2.0**-126
LEVELS = {"int8": 127.0, "int4": 7.0}  # the largest code of formats with scales


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int], rounds: int = 7) -> list[Tensor]:
    """Compute Philox4x32 (Salmon et al., SC 2011) on int64 tensors that hold 32-bit words."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(rounds):
        high0, low0 = _product(0xD2511F53, a)
        high1, low1 = _product(0xCD9E8D57, c)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return [a, b, c, d]


def _product(x: int, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return high and low words of a 32 by 32 bit product. It is computed in halves, because int64 is too small."""
    low, high = y & 0xFFFF, y >> 16
    part = x * low
    rest = x * high + (part >> 16)
    return rest >> 16, ((rest & 0xFFFF) << 16) | (part & 0xFFFF)


def random_bits(seed: int, arrival: int, client: int, size: int) -> Tensor:
    """Return 16 random bits for each of ``size`` elements of a row, int64 in 0..65535."""
    blocks = -(-size // 1024)
    block = torch.arange(blocks, dtype=torch.int64, device="cpu").repeat_interleave(_CALLS)
    call = torch.arange(_CALLS, dtype=torch.int64, device="cpu").repeat(blocks)
    fixed = torch.ones_like(call)
    counter = (block & _MASK, ((block >> 32 << 7) | call) & _MASK, fixed * client, fixed * (arrival & _MASK))
    words = philox(counter, (seed & _MASK, ((seed >> 32) ^ (arrival >> 32)) & _MASK))
    halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return torch.stack([half.view(blocks, _CALLS) for half in halves], dim=1).reshape(-1)[:size]


def encode(values: Tensor, bits: Tensor, format: str) -> tuple[Tensor, Tensor]:
    """Store fp32 ``values`` ([d]) with the given random ``bits``.

    Returns:
        The row's bytes, [row bytes] uint8, and its scales, [scale blocks] fp32 (empty for fp32 and bf16).
    """
    size = values.numel()
    padded = -(-size // SCALE_BLOCK) * SCALE_BLOCK
    v = torch.zeros(padded, dtype=torch.float32, device="cpu")
    v[:size] = values
    r = torch.zeros(padded, dtype=torch.int64, device="cpu")
    r[:size] = bits
    if format == "fp32":
        return v.view(torch.uint8), torch.empty(0, dtype=torch.float32, device="cpu")
    if format == "bf16":
        pattern = v.view(torch.int32).to(torch.int64) & _MASK
        magnitude = ((pattern & 0x7FFFFFFF) + r).clamp_max(0x7F7FFFFF)
        return ((pattern & 0x80000000) | magnitude).bitwise_right_shift(16).to(torch.int16).view(
            torch.uint8
        ), torch.empty(0, dtype=torch.float32, device="cpu")
    levels = LEVELS[format]
    blocks = v.view(-1, SCALE_BLOCK)
    scales = (blocks.abs().amax(dim=1) / levels).clamp_min(_SMALLEST_SCALE)
    scaled = (blocks * (1.0 / scales)[:, None]).clamp(-levels, levels)
    dither = r.view_as(blocks).to(torch.float32) * 2.0**-16 + (2.0**-17 - 0.5)
    q = ((scaled + dither) + 12582912.0) - 12582912.0  # to the nearest whole number, ties to even
    if format != "int4":
        return q.to(torch.int8).view(torch.uint8).reshape(-1), scales
    half = SCALE_BLOCK // 2
    nibbles = (q + 8.0).to(torch.uint8)
    return (nibbles[:, :half] | (nibbles[:, half:] << 4)).reshape(-1), scales


def decode(row: Tensor, scales: Tensor, format: str, size: int) -> Tensor:
    """Return the values of a stored row, [d] fp32."""
    if format == "fp32":
        return row.view(torch.float32)[:size].clone()
    if format == "bf16":
        return row.view(torch.bfloat16)[:size].to(torch.float32)
    if format != "int4":
        q = row.view(torch.int8).view(-1, SCALE_BLOCK).to(torch.float32)
    else:
        packed = row.view(-1, SCALE_BLOCK // 2)
        q = torch.cat([packed & 15, packed >> 4], dim=1).to(torch.float32) - 8.0
    return (q * scales[:, None]).reshape(-1)[:size]
