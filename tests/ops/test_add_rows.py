"""The sum over clients made little by little: bits, how it is divided over calls, refusals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import vector
from torch import Tensor

import fastagg
from fastagg import ops, reference
from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.storage.cache import FORMATS, ClientCache

pytestmark = pytest.mark.kernel

BLOCK = 1024
SIZES = (1, 127, 300, 1024, 1300, 4 * 1024 + 700)


def filled(size: int, slots: int, format: str) -> ClientCache:
    cache = ClientCache(size, slots, format, seed=3)
    total = torch.zeros(size)
    for slot in range(slots):
        update = vector(size, slot, 10.0 ** (slot % 5 - 2))
        ops.cached_step_(None, update, cache=cache, write=slot, client=slot, arrival=slot, sum=total)
    return cache


def weights_of(slots: int, seed: int = 0) -> Tensor:
    """Weights of which a third are zero, with both signs of zero."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=slots).astype(np.float32) * (rng.random(slots) > 0.3)
    weights[:2] = 0.0, -0.0
    return torch.from_numpy(weights)


def noise(rows: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, BLOCK)))


def same64(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int64), b.view(torch.int64))


def spelled_out(shadow: Tensor, cache: ClientCache, jobs: Any, weights: Tensor) -> Tensor:
    """Number by number: the product in float32, the sum in float64."""
    found = shadow.numpy().copy()
    for block, row, first, last in jobs:
        for slot in range(first, last):
            factor = weights.numpy()[slot]
            if factor != 0:
                part = ops.read_row(cache, slot).numpy()[block * BLOCK : (block + 1) * BLOCK]
                found[row, : len(part)] += (np.float32(factor) * part).astype(np.float64)
    return torch.from_numpy(found)


@pytest.mark.parametrize("format", FORMATS)
def test_products_are_float32_and_sums_float64(format: str, isa: str) -> None:
    slots = 11
    for size in SIZES:
        cache, blocks = filled(size, slots, format), -(-size // BLOCK)
        for weights, weight in ((weights_of(slots), 7.0), (None, 0.3), (None, -1.0), (None, 0.0)):
            # All slots of every block, some of them in rows in between, and none.
            jobs = [(block, 2 * block, 0, slots) for block in range(blocks)]
            jobs += [(blocks - 1, 1, 2, 7), (0, 3 if blocks > 1 else 2 * blocks, 4, 4)]
            shadow = noise(2 * blocks + 1, size)
            factors = torch.full((slots,), weight) if weights is None else weights
            expected = spelled_out(shadow, cache, jobs, factors)
            given_to_reference = reference.add_rows_(shadow.clone(), cache, jobs, weights, weight)
            assert ops.add_rows_(shadow, cache, jobs, weights, weight) is shadow
            assert same64(shadow, expected), f"size {size}"
            assert same64(given_to_reference, expected), f"size {size}, reference"


def test_the_sum_is_near_the_exact_one() -> None:
    """Against sums of products that are exact."""
    size, slots = 2500, 40
    cache, weights = filled(size, slots, "int8"), weights_of(slots, 5)
    shadow = torch.zeros(3, BLOCK, dtype=torch.float64)
    ops.add_rows_(shadow, cache, [(block, block, 0, slots) for block in range(3)], weights)
    rows = torch.stack([ops.read_row(cache, slot) for slot in range(slots)]).double()
    exact = (weights.double()[:, None] * rows).sum(0)
    most = (weights.double().abs()[:, None] * rows.abs()).sum(0)
    assert float(((shadow.view(-1)[:size] - exact).abs() / most).max()) < 2.0**-24 + slots * 2.0**-53
    assert float(most.min()) > 0


@given(
    format=st.sampled_from(list(FORMATS)), size=st.integers(1, 3000), cuts=st.lists(st.integers(0, 9), max_size=4),
    block_by_block=st.booleans(),
)  # fmt: skip
def test_however_it_is_divided_it_is_the_recomputed_sum(
    format: str, size: int, cuts: list[int], block_by_block: bool
) -> None:
    slots, blocks = 9, -(-size // BLOCK)
    cache, weights = filled(size, slots, format), weights_of(slots, size)
    shadow = torch.zeros(blocks, BLOCK, dtype=torch.float64)
    ends = [0, *sorted(cuts), slots]
    for first, last in pairwise(ends):
        jobs = [(block, block, first, last) for block in range(blocks)]
        for part in [[job] for job in jobs] if block_by_block else [jobs]:
            ops.add_rows_(shadow, cache, part, weights)
    total = ops.settle_rows_(torch.full((size,), 7.0), shadow, [(block, block) for block in range(blocks)])
    assert torch.equal(total, ops.recompute_sum_(torch.zeros(size), cache, weights))


@pytest.mark.parametrize("format", FORMATS)
def test_rows_without_weight_are_not_read_and_nothing_else_is_written(format: str, isa: str) -> None:
    """Rows of weight zero may hold anything, whether the slot is in use or not. So may the padding."""
    size, slots = 1500, 6
    cache = filled(size, slots, format)
    weights = torch.tensor([0.0, 1.0, 0.0, -2.0, 0.0, 0.0])
    clean = ops.add_rows_(torch.zeros(4, BLOCK, dtype=torch.float64), cache, [(1, 2, 0, slots)], weights)
    for slot in (0, 2, 4, 5):
        cache.data[slot].fill_(0xFF)  # NaN in fp32 and bf16
        cache.scales[slot].fill_(float("nan"))
    shadow = torch.full((4, BLOCK), float("nan"), dtype=torch.float64)
    shadow[2, : size - BLOCK] = 0.0
    ops.add_rows_(shadow, cache, [(1, 2, 0, slots)], weights)
    assert same64(shadow[2, : size - BLOCK], clean[2, : size - BLOCK])
    shadow[2, : size - BLOCK] = float("nan")
    assert shadow.isnan().all()
    assert not clean[2, size - BLOCK :].any() and clean[2, : size - BLOCK].any()


def test_settling_rounds_to_the_nearest_and_touches_its_blocks_alone(isa: str) -> None:
    size = 3 * BLOCK + 5
    shadow, total = noise(4, 9) * 1e3, vector(size, 1)
    expected = total.clone()
    expected[:BLOCK] = torch.from_numpy(shadow[3].numpy().astype(np.float32))
    expected[3 * BLOCK :] = torch.from_numpy(shadow[3].numpy().astype(np.float32))[:5]
    kept, by_reference = shadow.clone(), reference.settle_rows_(total.clone(), shadow, [(0, 3), (3, 3)])
    assert ops.settle_rows_(total, shadow, [(0, 3), (3, 3)]) is total
    assert torch.equal(total, expected) and torch.equal(by_reference, expected) and same64(shadow, kept)


def test_bits_do_not_depend_on_the_thread_count(threads: None) -> None:
    size, slots = 64 * BLOCK, 20  # 5 MiB of work: shared
    cache, weights = filled(size, slots, "int4"), weights_of(slots)
    found = []
    for count in (1, 2, 5):
        fastagg.set_num_threads(count)
        shadow = noise(64)
        ops.add_rows_(shadow, cache, [(block, 63 - block, 0, slots) for block in range(64)], weights)
        found.append((shadow, ops.settle_rows_(torch.zeros(size), shadow, [(i, i) for i in range(64)])))
    for shadow, total in found[1:]:
        assert same64(shadow, found[0][0]) and torch.equal(total, found[0][1])


def test_nothing_to_do_does_nothing() -> None:
    cache, shadow, total = filled(300, 2, "fp32"), noise(2), vector(300, 0)
    before, sum_before = shadow.clone(), total.clone()
    ops.add_rows_(shadow, cache, [])
    ops.settle_rows_(total, shadow, [])
    ops.settle_rows_(torch.empty(0), torch.empty(0, BLOCK, dtype=torch.float64), [])
    ops.add_rows_(shadow, ClientCache(0, 2), [])
    assert same64(shadow, before) and torch.equal(total, sum_before)


def test_the_extension_refuses_jobs_outside_the_rows() -> None:
    cache, shadow, total = filled(1500, 4, "bf16"), noise(1), vector(1500, 0)
    at, before, sum_before = shadow.data_ptr(), shadow.clone(), total.clone()
    for job in ((2, 0, 1, at), (2**60, 0, 1, at), (-1, 0, 1, at), (0, -1, 1, at), (0, 0, 5, at), (0, 2, 1, at)):
        with pytest.raises(ConfigError, match=r"no block|slots: "):
            native.add_rows(cache.native, jobs=[(0, 0, 4, at), job], weights=0, weight=1.0)
    for block in (2, -1, 2**60):
        with pytest.raises(ConfigError, match="no block"):
            native.settle_rows(jobs=[(0, at), (block, at)], sum=total.data_ptr(), size=1500)
    assert same64(shadow, before) and torch.equal(total, sum_before)
