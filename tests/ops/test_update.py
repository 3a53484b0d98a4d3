"""Reading updates: pieces, dtypes, accumulation, inspection."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import SIZES, same_bits, vector
from support.liars import Foreign

import fastagg
from fastagg import ops

pytestmark = pytest.mark.kernel


def test_every_half_precision_number_widens_exactly(isa: str) -> None:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        halves = patterns.view(dtype)
        got = ops.accumulate_(torch.empty(1 << 16), halves, fresh=True)
        nan = torch.isnan(halves)
        assert torch.isnan(got[nan]).all()
        assert same_bits(got[~nan], halves.float()[~nan])


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_accumulate(weight: float, isa: str) -> None:
    for size in (*SIZES, 1 << 20, (1 << 20) + 9):
        acc, update = vector(size, 1), vector(size, 2)
        expected = acc.numpy() + np.float32(weight) * update.numpy()
        assert same_bits(ops.accumulate_(acc, update, weight), torch.from_numpy(expected))
        fresh = ops.accumulate_(acc, update, weight, fresh=True)
        assert same_bits(fresh, torch.from_numpy(np.float32(weight) * update.numpy()))


@given(cuts=st.lists(st.integers(0, 3000), max_size=8), seed=st.integers(0, 99), data=st.data())
def test_pieces_are_the_flat_vector(cuts: list[int], seed: int, data: st.DataObject) -> None:
    size = 3000
    flat = vector(size, seed)
    edges = [0, *sorted(cuts), size]
    pieces, expected = [], []
    for a, b in itertools.pairwise(edges):
        dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
        piece = flat[a:b].to(dtype)
        expected.append(piece.float())
        kind = data.draw(st.sampled_from(["tensor", "strided", "numpy", "read-only", "reversed"]))
        if kind == "strided":
            piece = torch.stack([piece, piece], dim=1)[:, 0]
        elif kind != "tensor" and dtype is not torch.bfloat16:
            piece = piece.numpy().copy()
            if kind == "reversed":
                piece = piece[::-1].copy()[::-1]
            piece.flags.writeable = kind != "read-only"
        pieces.append(piece)
    whole = torch.cat(expected)
    assert same_bits(ops.accumulate_(torch.empty(size), pieces, fresh=True), whole)
    assert ops.inspect(pieces) == ops.inspect(whole)
    x = vector(size, 1)
    assert same_bits(
        ops.step_(x.clone(), pieces, optimizer="sgd", lr=0.1), ops.step_(x.clone(), whole, optimizer="sgd", lr=0.1)
    )


def test_dlpack_is_read_where_it_lies() -> None:
    tensor = vector(100, 1)
    pieces = fastagg.storage.pieces.Pieces([Foreign(tensor)])
    assert pieces.native == [(tensor.data_ptr(), 100, 0)]


@pytest.mark.parametrize("size", SIZES)
def test_norm(size: int, every_isa: Any) -> None:
    update = vector(size, 7)
    exact = math.sqrt(math.fsum(float(value) ** 2 for value in update.tolist()))
    for _ in every_isa():
        assert ops.inspect(update) == (True, pytest.approx(exact, rel=1e-14))


def test_norm_of_the_largest_floats_does_not_overflow(isa: str) -> None:
    update = torch.full((3000,), torch.finfo(torch.float32).max)
    assert ops.inspect(update) == (True, pytest.approx(math.sqrt(3000) * torch.finfo(torch.float32).max))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_bad_element_anywhere_is_seen(bad: float, dtype: torch.dtype, isa: str) -> None:
    for size in (1, 17, 1024, 1025, 70_001):
        for position in {0, size // 2, size - 1}:
            update = torch.ones(size, dtype=dtype)
            update[position] = bad
            assert not ops.inspect(update).finite


@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    # Untouched zero pages take no memory, so this needs little; 32-bit counts would stop short of the last element.
    size = (1 << 31) + 5
    update = np.zeros(size, dtype=np.float16)
    assert ops.inspect(update) == (True, 0.0)
    update[-1] = 3.0
    assert ops.inspect(update) == (True, 3.0)


@pytest.mark.parametrize("size", [1, 1023, 1024, 70_001])
def test_distances(size: int, isa: str) -> None:
    update, x, base = vector(size, 1), vector(size, 2), vector(size, 3)
    moved = x.numpy() - base.numpy()  # fp32, as the kernel takes it
    want = [math.fsum(a * b for a, b in zip(p.tolist(), q.tolist(), strict=True))
            for p, q in ((moved, moved), (update.numpy(), update.numpy()), (moved, update.numpy()))]  # fmt: skip
    seen = ops.distances(update, x, base, inner=True)
    assert seen.finite
    assert (seen.moved**2, seen.norm**2) == (pytest.approx(want[0], rel=1e-13), pytest.approx(want[1], rel=1e-13))
    assert seen.inner == pytest.approx(want[2], rel=1e-9, abs=1e-9)
    assert ops.distances(update, x, base)[:3] == seen[:3]
