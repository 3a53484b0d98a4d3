"""Encoded updates in plain torch: what their arrays stand for, and what an update becomes (csrc/math/wire.h)."""

import torch
from torch import Tensor

from support.reference.rows import SCALE_BLOCK, decode, encode, random_bits

_LEAST = 2.0**-126  # of a scale


def decode_wire(arrays: dict[str, Tensor], format: str, size: int, values: str = "fp32") -> Tensor:
    """Return what the arrays of an encoded update stand for, [size] fp32.

    Args:
        arrays: those of :meth:`fastagg.Encoded.arrays`, without the header.
        values: the type of a top-k's values.
    """
    codes, scales = arrays["codes"], arrays.get("scales", torch.empty(0))
    if format in ("int8", "int4", "bf16"):
        return decode(codes.view(torch.uint8), scales, format, size)
    if format == "int8-tensor":
        return codes.float() * scales.repeat_interleave(_lengths(arrays["ends"]))
    if format == "sign":
        bits = (codes[:, None] >> torch.arange(8)) & 1
        return ((1.0 - 2.0 * bits.reshape(-1, SCALE_BLOCK).float()) * scales[:, None]).reshape(-1)[:size]
    indices = arrays["indices"].long()
    if values == "int2":
        levels = (2.0 * ((codes[:, None] >> (2 * torch.arange(4))) & 3).float() - 3.0) * torch.tensor(1.0 / 3.0)
        chosen = (levels.reshape(-1, SCALE_BLOCK) * scales[:, None]).reshape(-1)[: len(indices)]
    else:
        chosen = decode(codes.contiguous().view(torch.uint8), scales, values, len(indices))
    return torch.zeros(size).index_put((indices,), chosen)


def encode_wire(
    x: Tensor, format: str, seed: int, number: int = 0, *, ends: Tensor | None = None, count: int = 0,
    values: str = "fp32",
) -> dict[str, Tensor]:  # fmt: skip
    """Return the arrays that an update becomes, without the header.

    Args:
        x: the update, [d] fp32.
        seed, number: the key of the rounding.
        ends: where the model's arrays end, for ``int8-tensor``.
        count, values: of a top-k.
    """
    if format in ("int8", "int4", "bf16"):
        codes, scales = encode(x, random_bits(seed, number, 0, len(x)), format)
        return {"codes": codes, "scales": scales}
    if format == "int8-tensor":
        assert ends is not None
        parts = x.split(_lengths(ends).tolist())
        scales = torch.stack([(part.abs().max() / 127.0).clamp(min=_LEAST) for part in parts])
        inverse = (1.0 / scales).repeat_interleave(_lengths(ends))
        return {"codes": (x * inverse).round().clamp(-127, 127).to(torch.int8), "scales": scales, "ends": ends}
    if format == "sign":
        padded = torch.cat([x, x.new_zeros(-len(x) % SCALE_BLOCK)])
        bits = torch.signbit(padded).view(-1, 8).long() << torch.arange(8)
        return {"codes": bits.sum(1).to(torch.uint8), "scales": _mean_magnitudes(x)}
    order = torch.argsort(x.abs(), descending=True, stable=True)[:count]
    indices = order.sort().values
    chosen = x[indices]
    found = {"indices": indices.int()}
    if values == "fp32":
        return {**found, "codes": chosen}
    random = random_bits(seed, number, 0, count)
    if values != "int2":
        codes, scales = encode(chosen, random, values)
        return {**found, "codes": codes, "scales": scales}
    blocks = torch.cat([chosen, chosen.new_zeros(-count % SCALE_BLOCK)]).view(-1, SCALE_BLOCK)
    scales = blocks.abs().amax(1).clamp(min=_LEAST)
    at = (blocks * (1.0 / scales)[:, None] + 1.0) * 1.5
    dither = (torch.cat([random, random.new_zeros(-count % SCALE_BLOCK)]).view_as(at).float() + 0.5) / 65536.0 - 0.5
    two = (at + dither).round().clamp(0, 3).long().reshape(-1)
    two[count:] = 0
    packed = (two.view(-1, 4) << (2 * torch.arange(4))).sum(1).to(torch.uint8)
    return {**found, "codes": packed, "scales": scales}


def _lengths(ends: Tensor) -> Tensor:
    return torch.diff(ends, prepend=ends.new_zeros(1))


def _mean_magnitudes(x: Tensor) -> Tensor:
    """The mean magnitude of every 256 elements. 32 lanes are added up, and then in halves."""
    found = []
    for block in x.abs().split(SCALE_BLOCK):
        lanes = torch.zeros(32)
        for part in block.split(32):
            lanes[: len(part)] += part
        for half in (16, 8, 4, 2, 1):
            lanes = lanes[:half] + lanes[half : 2 * half]
        found.append(lanes[0] / len(block))
    return torch.stack(found)
