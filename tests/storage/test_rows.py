"""How rows are stored: the random bits, the bits of every format, unbiasedness, bounds, on every instruction set."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kernels import extreme, same_bits, vector
from support.reference.rows import LEVELS, philox

from fastagg import ops
from fastagg.storage.cache import FORMATS, SCALE_BLOCK, ClientCache

pytestmark = pytest.mark.kernel

SIZES = (1, 2, 127, 128, 255, 256, 257, 511, 1023, 1024, 1025, 3000, 65536, 70_001)


def store(values: torch.Tensor, format: str, *, seed: int = 0, client: int = 0, arrival: int = 0) -> ClientCache:
    """A cache of two rows with `values` in row 1."""
    cache = ClientCache(values.numel(), 2, format, seed=seed)
    cache.data.zero_()
    total = torch.zeros(values.numel())
    ops.cached_step_(None, values, cache=cache, write=1, sum=total, client=client, arrival=arrival)
    return cache


def test_philox_is_the_published_generator() -> None:
    zero = (torch.zeros(1, dtype=torch.int64),) * 4
    ones = (torch.full((1,), 0xFFFFFFFF, dtype=torch.int64),) * 4
    for counter, key, rounds, expected in (  # Random123's known-answer tests
        (zero, (0, 0), 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
        (zero, (0, 0), 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, (0xFFFFFFFF, 0xFFFFFFFF), 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ):
        words = philox(counter, key, rounds)
        assert " ".join(f"{int(word):08x}" for word in words) == expected


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_the_reference_to_the_bit(format: str, every_isa: Any) -> None:
    for size in SIZES:
        for values in (vector(size, size), extreme(size, size)):
            bits = reference.random_bits(2**40 + 7, 2**33 + 5, 3, size)
            data, scales = reference.encode(values, bits, format)
            row = reference.decode(data, scales, format, size)
            for isa in every_isa():
                cache = store(values, format, seed=2**40 + 7, client=3, arrival=2**33 + 5)
                used = cache.row_bytes if format in ("int8", "int4") else size * FORMATS[format] // 8
                assert torch.equal(cache.data[1][:used], data[:used]), f"{isa}, size {size}"
                assert same_bits(cache.scales[1], scales) and same_bits(ops.read_row(cache, 1), row)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["bf16", "int8", "int4"])
def test_rounding_is_unbiased(format: str) -> None:
    size, rounds = 2048, 400
    values = vector(size, 5)
    exact, total = values.double(), torch.zeros(size, dtype=torch.float64)
    for seed in range(rounds):
        total += ops.read_row(store(values, format, seed=seed), 1).double() - exact
    if format == "bf16":
        step = torch.exp2(torch.floor(torch.log2(exact.abs())) - 7)
    else:
        step = store(values, format).scales[1].double().repeat_interleave(SCALE_BLOCK)
    up = (exact / step) % 1.0  # the probability of rounding up
    deviation = step * (up * (1 - up) * rounds).sqrt()
    # Bernstein's bound for each element, at 1e-7; and all elements together are not on one side.
    assert (total.abs() <= 5.5 * deviation + 10 * step).all()
    scores = (total / deviation)[(up > 0.05) & (up < 0.95)]
    assert len(scores) > size / 2
    assert abs(float(scores.mean())) < 5 / len(scores) ** 0.5
    assert 0.9 < float(scores.std()) < 1.1


@given(format=st.sampled_from(["int8", "int4"]), seed=st.integers(0, 9999), size=st.sampled_from([1, 256, 700]))
def test_error_is_below_one_scale(format: str, seed: int, size: int) -> None:
    values = extreme(size, seed)
    cache = store(values, format, seed=seed)
    scale = cache.scales[1].double().repeat_interleave(SCALE_BLOCK)[:size]
    error = (ops.read_row(cache, 1).double() - values.double()).abs()
    assert (error <= scale * (1 + 1e-6)).all()
    levels = 127 if format == "int8" else 7
    for block in range(len(cache.scales[1])):
        most = float(values[block * SCALE_BLOCK : (block + 1) * SCALE_BLOCK].abs().max())
        assert float(cache.scales[1][block]) == pytest.approx(max(most / levels, 2.0**-126), rel=1e-6)


def test_bf16_error_is_below_one_ulp_and_never_overflows() -> None:
    values = extreme(4096, 3)
    values[:2] = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
    row = ops.read_row(store(values, "bf16"), 1)
    assert torch.isfinite(row).all()
    ulp = torch.exp2(torch.floor(torch.log2(values.double().abs().clamp_min(2.0**-126))) - 7)
    assert ((row.double() - values.double()).abs() <= ulp).all()


@pytest.mark.parametrize("format", FORMATS)
def test_zeros_and_whole_multiples_are_exact(format: str, isa: str) -> None:
    levels = int(LEVELS.get(format, 127))
    grid = torch.arange(-levels, levels + 1, dtype=torch.float32).repeat(40)[:2048] * 0.125
    for seed in range(5):
        assert same_bits(ops.read_row(store(torch.zeros(300), format, seed=seed), 1), torch.zeros(300))
        assert torch.equal(ops.read_row(store(grid, format, seed=seed), 1), grid)


def test_random_bits_do_not_repeat_across_seed_client_arrival_or_element() -> None:
    base = reference.random_bits(1, 2, 3, 4096)
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4), (1 << 32, 2, 3), (1, 1 << 32, 3)):
        same = (reference.random_bits(*other, 4096) == base).float().mean()
        assert same < 0.01
    for shift in (1, 128, 1024):
        assert (base[shift:] == base[:-shift]).float().mean() < 0.01
    assert abs(float(base.double().mean()) - 32767.5) < 5 * 65536 / 12**0.5 / 4096**0.5


def test_what_the_sum_rounds_off_averages_out() -> None:
    """Many changes of less than half an ulp of the sum. If each were rounded by itself, all would be lost."""
    size, rounds = 1000, 4000
    total, plain = torch.full((size,), 200.0), torch.full((size,), 200.0)
    exact = total.double()
    ulp = float(np.spacing(np.float32(200.0)))
    change = torch.rand(size, generator=torch.Generator().manual_seed(0)) * 0.4 * ulp
    for arrival in range(rounds):
        exact += change.double()
        plain += change
        ops.cached_step_(None, change, cache=None, sum=total, arrival=arrival)
    assert torch.equal(plain, torch.full((size,), 200.0))  # stood still
    assert float((total.double() - exact).abs().max()) < 8 * ulp  # it moved by 800
    assert float((total.double() - exact).mean().abs()) < ulp


def test_random_changes_gather_no_more_than_rounding_does() -> None:
    size, rounds = 1000, 4000
    total = torch.full((size,), 100.0)
    exact = total.double()
    generator = torch.Generator().manual_seed(0)
    for arrival in range(rounds):
        change = torch.randn(size, generator=generator)
        exact += change.double()
        ops.cached_step_(None, change, cache=None, sum=total, arrival=arrival)
    ulp = float(np.spacing(np.float32(200.0)))
    assert float((total.double() - exact).square().mean().sqrt()) < 2 * 0.3 * rounds**0.5 * ulp


@pytest.mark.parametrize("terms", [[], [(3, -1.0)], [(1, 0.5)], [(1, 0.5), (3, -1.0)], [(3, 0.25), (2, -1.0)]])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.7, 1.3)])
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_one_pass_over_whole_blocks_is_the_stages_to_the_bit(
    format: str, weights: tuple[float, float], terms: list[tuple[int, float]], isa: str
) -> None:
    """A vector whose last scale block is not whole goes stage by stage; the whole ones before it must not differ."""
    results = []
    for size in (768, 700):
        cache, total, x = ClientCache(size, 4, format, seed=5), torch.zeros(size), torch.zeros(size)
        for slot in range(4):
            update = vector(768, slot)[:size]
            ops.cached_step_(None, update, cache=cache, write=slot, sum=total, client=slot, arrival=slot)
        for arrival, (write, read) in enumerate([(1, 1), (1, 0), (1, 1)], start=4):
            ops.cached_step_(
                x, vector(768, arrival)[:size], cache=cache, write=write, read=read, sum=total, sum_scale=-0.3,
                entering=weights[0], leaving=weights[1], terms=terms, client=1, arrival=arrival, optimizer="sgd", lr=1,
            )  # fmt: skip
        rows = [ops.read_row(cache, slot)[:512] for slot in range(4)]
        results.append([x[:512], total[:512], *rows])
    for whole, staged in zip(*results, strict=True):
        assert same_bits(whole, staged)
    assert results[0][0].abs().min() > 0  # it did move
