"""8-bit moments in plain torch, with the bits that csrc/math/moments.h defines."""

import torch
from torch import Tensor

from support.reference.rows import philox

BLOCK = 256
LARGEST = 1.5 * 2.0**127
_CUT, _CALLS, _SERVER, _MASK = 20, 16, 0xFFFFFFFF, 0xFFFFFFFF
_LEAST_FIELD = 27  # a unit's smallest exponent field: 2^-100


def random_bits(seed: int, step: int, size: int) -> dict[str, Tensor]:
    """Return 20 random bits for each of ``size`` elements (whole blocks), int64: for ``m``, and for ``v`` and
    ``vhat``."""
    blocks = size // BLOCK
    block = torch.arange(blocks, dtype=torch.int64, device="cpu").repeat_interleave(_CALLS)
    call = torch.arange(_CALLS, dtype=torch.int64, device="cpu").repeat(blocks)
    fixed = torch.ones_like(call)
    counter = (block & _MASK, ((block >> 32 << 7) | call) & _MASK, fixed * _SERVER, fixed * (step & _MASK))
    found = philox(counter, (seed & _MASK, ((seed >> 32) ^ (step >> 32)) & _MASK))
    words = torch.stack([word.view(blocks, _CALLS) for word in found], dim=1).reshape(blocks, 64)
    windows = [((words >> (8 * i)) | (words << (32 - 8 * i))) & ((1 << _CUT) - 1) for i in range(4)]
    return {
        "m": torch.stack(windows, dim=1).reshape(-1),
        "v": torch.stack([windows[i ^ 2] for i in range(4)], dim=1).reshape(-1),
    }


def units_of(values: Tensor, span: int) -> Tensor:
    """Return the unit of every block, [blocks] fp32, a power of two."""
    most = values.view(-1, BLOCK).abs().amax(dim=1).view(torch.int32).to(torch.int64)
    field = ((most + 0x1FFFFF) >> 23) - span
    return (field.clamp_min(_LEAST_FIELD) << 23).to(torch.int32).view(torch.float32)


def encode(values: Tensor, units: Tensor, bits: Tensor, signed: bool) -> Tensor:
    """Return the codes of fp32 ``values`` (whole blocks, each with its unit), [bytes] uint8, in their stored order."""
    values = values.clamp(-LARGEST, LARGEST)
    c = units.repeat_interleave(BLOCK)
    magnitude = values.abs() if signed else torch.maximum(values, 0.125 * c)
    code = (_pattern(magnitude + c) - _pattern(c) + bits) >> _CUT
    if signed:
        code = code | (_pattern(values) >> 31 << 7)
    return code.to(torch.uint8).view(-1, 4, BLOCK // 4).transpose(1, 2).reshape(-1)


def decode(codes: Tensor, units: Tensor, signed: bool) -> Tensor:
    """Return the values of codes, [whole blocks] fp32."""
    code = codes.view(-1, BLOCK // 4, 4).transpose(1, 2).reshape(-1).to(torch.int64)
    c = units.repeat_interleave(BLOCK).to(torch.float64)
    magnitude = code & 127 if signed else code
    value = c * (torch.exp2((magnitude >> 3).to(torch.float64)) * (1 + (magnitude & 7) / 8.0)) - c
    return torch.where(code > 127, -value, value).to(torch.float32) if signed else value.to(torch.float32)


def _pattern(values: Tensor) -> Tensor:
    return values.view(torch.int32).to(torch.int64) & _MASK
