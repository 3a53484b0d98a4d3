"""A row is read in one cache and written to another: the in-place result, and the old row does not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.kernels import same_bits, vector

from fastagg import ops
from fastagg.storage.cache import FORMATS, ClientCache

pytestmark = pytest.mark.kernel

SIZES = (700, 1024, 70_001)  # with a last scale block that is not whole, in whole blocks, on several threads
SLOTS = 3


def filled(size: int, format: str) -> tuple[ClientCache, torch.Tensor]:
    """A cache with a row in every slot, and their sum."""
    cache, total = ClientCache(size, SLOTS, format, seed=5), torch.zeros(size)
    for slot in range(SLOTS):
        ops.cached_step_(None, vector(size, slot), cache=cache, write=slot, sum=total, client=slot, arrival=slot)
    return cache, total


def bytes_of(cache: ClientCache) -> tuple[bytes, bytes]:
    return cache.data.numpy().tobytes(), cache.scales.numpy().tobytes()


def arrive(kind: str, cache: ClientCache, total: torch.Tensor, **how: Any) -> list[torch.Tensor]:
    """One arrival from client 1: the model, the sum and the buffer afterwards."""
    size = cache.size
    x, acc, given = vector(size, 10), vector(size, 11), vector(size, 12, 0.1)
    how |= {"cache": cache, "client": 1, "arrival": 7, "gain": 0.8}
    step: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "sum_scale": -0.5}
    if kind == "mean":
        ops.cached_step_(x, given, sum=total, entering=0.7, leaving=1.0, **how, **step)
    elif kind == "mean, terms":
        ops.cached_step_(x, given, sum=total, terms=[(0, -1.0), (2, 0.5)], **how, **step)
    elif kind == "mean, no step":
        ops.cached_step_(None, given, sum=total, **how)
    elif kind == "calibrated":
        ops.cached_step_(x, given, sum=total, acc=acc, weight=0.6, acc_scale=0.5, terms=[(0, 1.0)], **how, **step)
    else:
        ops.cached_step_(None, given, acc=acc, weight=0.6, **how)
    return [x, total, acc]


KINDS = ("mean", "mean, terms", "mean, no step", "calibrated", "calibrated, no step")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_row_written_elsewhere_is_the_row_written_in_place(format: str, kind: str, isa: str) -> None:
    for size in SIZES:
        (here, total), (read, other_total) = filled(size, format), filled(size, format)
        there = ClientCache(size, 2, format, seed=99)
        there.data.fill_(0xA5), there.scales.fill_(7.0)
        before, beside = bytes_of(read), ops.read_row(there, 1)
        old = ops.read_row(here, 1)
        expected = arrive(kind, here, total, read=1, write=1)
        got = arrive(kind, read, other_total, read=1, write=0, write_cache=there)
        assert all(same_bits(a, b) for a, b in zip(got, expected, strict=True)), size
        assert torch.equal(there.data[0], here.data[1]) and same_bits(there.scales[0], here.scales[1])
        assert not same_bits(ops.read_row(here, 1), old)  # a new row, indeed
        assert bytes_of(read) == before
        assert same_bits(ops.read_row(there, 1), beside) and bool((there.data[1] == 0xA5).all())


@pytest.mark.parametrize("format", FORMATS)
def test_one_row_for_all_clients_to_write_to(format: str) -> None:
    """Two rows that take turns, as a client's file holds them: the rows, sums and models of one cache."""
    size = 3000
    one, total, x = ClientCache(size, 1, format, seed=3), torch.zeros(size), vector(size, 1)
    turns, other_total, y = [ClientCache(size, 1, format, seed=3) for _ in range(2)], torch.zeros(size), x.clone()
    for arrival in range(6):
        given = vector(size, 20 + arrival)
        how: dict[str, Any] = {
            "write": 0, "read": 0 if arrival else -1, "arrival": arrival, "optimizer": "sgd", "lr": 0.1,
        }  # fmt: skip
        ops.cached_step_(x, given, cache=one, sum=total, **how)
        new, old = turns[arrival % 2], turns[1 - arrival % 2]
        ops.cached_step_(y, given, cache=old, write_cache=new, sum=other_total, **how)
        assert torch.equal(one.data, new.data) and same_bits(one.scales, new.scales)
    assert same_bits(x, y) and same_bits(total, other_total)


def test_the_rounding_is_keyed_by_the_cache_that_is_read() -> None:
    size = 2000
    cache, _ = filled(size, "int4")
    rows = []
    for seed in (1, 2):
        there = ClientCache(size, 1, "int4", seed=seed)
        ops.cached_step_(None, vector(size, 4), cache=cache, write_cache=there, write=0, sum=torch.zeros(size))
        rows.append(ops.read_row(there, 0))
    assert same_bits(*rows)
