"""Server steps through a client cache in plain torch; see :mod:`fastagg.ops.cached`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastagg.reference.rows import decode, encode, random_bits
from fastagg.reference.step import step_
from fastagg.storage.cache import ClientCache
from fastagg.storage.pieces import Pieces, as_pieces

_F64 = torch.float64


def read_row(cache: ClientCache, slot: int) -> Tensor:
    """Return row ``slot``, decoded."""
    return decode(cache.data[slot], cache.scales[slot], cache.format, cache.size)


def recompute_sum_(sum: Tensor, cache: ClientCache, weights: Tensor, first: int, last: int, stride: int = 1) -> Tensor:
    """Compute the exact sum of the rows with a nonzero weight, for some blocks."""
    for block in range(first, last, stride):
        part = slice(block * 1024, (block + 1) * 1024)
        total = torch.zeros_like(sum[part], dtype=_F64)
        for slot in weights.nonzero().flatten().tolist():
            total += (read_row(cache, slot)[part] * weights[slot]).to(_F64)
        sum[part] = total.to(torch.float32)
    return sum


def add_rows_(
    shadow: Tensor,
    cache: ClientCache,
    jobs: Sequence[tuple[int, int, int, int]],
    weights: Tensor | None = None,
    weight: float = 1.0,
) -> Tensor:
    """See :func:`fastagg.ops.add_rows_`. The product is in fp32, as in the kernels."""
    factors = torch.full((cache.slots,), weight, dtype=torch.float32, device="cpu") if weights is None else weights
    for block, row, first, last in jobs:
        part = slice(block * 1024, min((block + 1) * 1024, cache.size))
        for slot in range(first, last):
            if factors[slot] != 0:
                added = (read_row(cache, slot)[part] * factors[slot]).to(_F64)
                shadow[row, : added.numel()] += added
    return shadow


def settle_rows_(sum: Tensor, shadow: Tensor, jobs: Sequence[tuple[int, int]]) -> Tensor:
    """See :func:`fastagg.ops.settle_rows_`."""
    for block, row in jobs:
        part = sum[block * 1024 : (block + 1) * 1024]
        part.copy_(shadow[row, : part.numel()])
    return sum


def cached_step_(
    x: Tensor | None,
    update: Tensor | list[Tensor] | Pieces,
    *,
    cache: ClientCache | None,
    write: int = -1,
    read: int = -1,
    client: int = 0,
    arrival: int = 0,
    gain: float = 1.0,
    sum: Tensor | None = None,
    entering: float = 1.0,
    leaving: float = 1.0,
    sum_scale: float = 1.0,
    terms: Sequence[tuple[int, float]] = (),
    acc: Tensor | None = None,
    fresh: bool = False,
    weight: float = 1.0,
    acc_scale: float = 1.0,
    out: Tensor | None = None,
    write_cache: ClientCache | None = None,
    **optimizer: Any,
) -> Tensor | None:
    """See :func:`fastagg.ops.cached_step_`."""
    given = as_pieces(update).flat(torch.float32)
    if gain != 1.0:
        given = given * torch.tensor(gain, dtype=torch.float32, device="cpu")
    old = torch.zeros_like(given)
    stored = given
    if cache is not None and read >= 0:
        old = read_row(cache, read)
    if cache is not None and write >= 0:
        into = cache if write_cache is None else write_cache
        bits = random_bits(cache.seed, arrival, client, cache.size).to(cache.device)
        data, scales = encode(given, bits, cache.format)
        into.data[write].copy_(data)
        into.scales[write].copy_(scales)
        stored = read_row(into, write)

    def add(change: Tensor) -> None:
        assert sum is not None
        sum.copy_(sum.to(_F64) + change)

    def rows() -> Tensor:
        assert cache is not None
        total = torch.zeros_like(given, dtype=_F64)
        for slot, factor in terms:
            total += factor * read_row(cache, slot).to(_F64)
        return total

    if acc is None:
        add(entering * stored.to(_F64) - leaving * old.to(_F64))
        if terms:
            add(rows())
        if x is None:
            return out
        assert sum is not None
        return step_(x, _direction(sum_scale * sum.to(_F64)), out=out, **optimizer)
    c = weight * (given.to(_F64) - old.to(_F64)) + (0.0 if fresh else acc.to(_F64))
    if x is None:
        acc.copy_(c)
        return out
    assert sum is not None
    d = sum_scale * sum.to(_F64) + acc_scale * c
    if terms:
        add(rows())
    return step_(x, _direction(d), out=out, **optimizer)


def _direction(d: Tensor) -> Tensor:
    # Updates have at most fp32's precision. The kernels also round the direction once.
    return d.to(torch.float32)
