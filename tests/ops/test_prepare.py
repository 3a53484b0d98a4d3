"""Calls whose arguments are checked once: the op's bits, and refusals when they are prepared and when they are made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import moments, same_bits, vector

from fastagg import ops
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.storage.cache import ClientCache

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch before 2.10 has no table of functions"
    ),
]
D = 3001


def tensors(seed: int) -> dict[str, torch.Tensor]:
    """Model, update, and what else the ops take; the same ones for the same seed."""
    made = {name: vector(D, seed + i) for i, name in enumerate(("x", "u", "acc", "base", "out"))}
    return made | {"units": torch.zeros(2, 12)} | moments("amsgrad", D, seed + 9)


def cached(t: dict[str, torch.Tensor], format: str) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    cache = ClientCache(D, 3, format, seed=5)
    for slot in range(3):
        ops.cached_step_(None, vector(D, slot), cache=cache, write=slot, sum=torch.zeros(D))
    t["row"] = cache.data
    given = {"cache": cache, "write": 1, "read": 1, "client": 7, "arrival": 3, "sum": t["acc"], "sum_scale": 0.5}
    return ops.cached_step_, (t["x"], t["u"]), {**given, "terms": [(0, 0.25)], "optimizer": "sgd", "lr": 0.1}


CALLS: dict[str, Callable[[dict[str, torch.Tensor]], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]] = {
    "sgd": lambda t: (ops.sgd_, (t["x"], t["u"]), {"lr": 0.1}),
    "momentum": lambda t: (ops.momentum_, (t["x"], t["u"], t["m"]), {"lr": 0.1}),
    "adam": lambda t: (ops.adam_, (t["x"], t["u"], t["m"], t["v"]), {"lr": 0.1, "correction": 3}),
    "amsgrad": lambda t: (ops.amsgrad_, (t["x"], t["u"], t["m"], t["v"], t["vhat"]), {"lr": 0.1}),
    "yogi": lambda t: (ops.yogi_, (t["x"], t["u"], t["m"], t["v"]), {"lr": 0.1}),
    "adagrad": lambda t: (ops.adagrad_, (t["x"], t["u"], t["m"], t["v"]), {"lr": 0.1}),
    "flush": lambda t: (ops.step_, (t["x"], t["u"]), {"optimizer": "sgd", "lr": 0.1, "acc": t["acc"], "scale": 0.5}),
    "mixing": lambda t: (
        ops.step_, (t["x"], t["u"]), {"optimizer": "sgd", "lr": 0.1, "base": t["base"], "out": t["out"]}
    ),
    "fp32 rows": lambda t: cached(t, "fp32"),
    "int4 rows": lambda t: cached(t, "int4"),
    "accumulate": lambda t: (ops.accumulate_, (t["acc"], t["u"], 0.3), {}),
    "fresh": lambda t: (ops.accumulate_, (t["acc"], t["u"]), {"fresh": True}),
    "pieces": lambda t: (ops.accumulate_, (t["acc"], [t["u"][:5], t["u"][5:].view(4, -1)]), {}),
    "gather": lambda t: (ops.gather, (t["u"], t["out"]), {}),
    "difference": lambda t: (ops.difference, (t["x"], t["base"], t["out"]), {}),
    "inspect": lambda t: (ops.inspect, (t["u"],), {}),
    "distances": lambda t: (ops.distances, (t["u"], t["x"], t["base"]), {"inner": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_prepared_call_is_the_op(name: str) -> None:
    """Three calls, between which the update changes in place: every vector has the op's bits, and so has the result."""
    mine, other = tensors(1), tensors(1)
    op, args, given = CALLS[name](mine)
    call = ops.prepare(op, *args, **given)
    before = {key: tensor.clone() for key, tensor in mine.items()}
    plain, others, same = CALLS[name](other)
    assert all(torch.equal(mine[key], before[key]) for key in mine)  # preparing writes nothing
    for seed in (20, 21, 22):
        found, expected = call(), plain(*others, **same)
        if isinstance(expected, torch.Tensor):
            assert any(found is tensor for tensor in mine.values())
            assert same_bits(found, expected)
        else:
            assert found == expected and type(found) is type(expected)
        for key, tensor in mine.items():
            assert torch.equal(tensor.view(torch.uint8), other[key].view(torch.uint8)), key
        for one in (mine, other):
            one["u"].copy_(vector(D, seed))


def test_eight_bit_moments() -> None:
    found = []
    for prepared in (False, True):
        m, v = (torch.zeros(12 * 256, dtype=torch.uint8) for _ in range(2))
        x, units = vector(D, 1), torch.zeros(2, 12)
        given = {"optimizer": "adam", "lr": 0.1, "m": m, "v": v, "units": units, "rounding": (3, 4)}
        call = ops.prepare(ops.step_, x, vector(D, 2), **given) if prepared else None
        for _ in range(2):
            call() if call else ops.step_(x, vector(D, 2), **given)
        found.append((x, units, m, v))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)) and found[0][2].any()


def test_the_call_holds_what_it_works_on() -> None:
    x, u = vector(D, 1), vector(D, 2)
    expected, known = x + u, weakref.ref(x)
    call = ops.prepare(ops.sgd_, x, u, lr=1.0)
    del x, u
    gc.collect()
    assert same_bits(call(), expected)
    del call
    gc.collect()
    assert known() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_views_and_tensors_with_a_gradient(dtype: torch.dtype) -> None:
    whole = torch.nn.Parameter(vector(2 * D, 1))
    update = vector(2 * D, 2).to(dtype).requires_grad_()
    x, expected = whole.detach()[7 : D + 7], whole.detach()[7 : D + 7] + 0.5 * update.detach()[D:].float()
    ops.prepare(ops.sgd_, x, update[D:], lr=0.5)()
    assert same_bits(whole.detach()[7 : D + 7], expected)
    ops.prepare(ops.sgd_, whole, update, lr=0.5)()  # a Parameter itself
    assert same_bits(x, expected + 0.5 * update.detach()[7 : D + 7].float())
    assert whole.grad is None and update.grad is None


def test_what_is_refused_when_a_call_is_prepared() -> None:
    x, u = vector(D, 1), vector(D, 2)
    wide = vector(2 * D, 3)[::2]
    for call, error, words in (
        (
            lambda: ops.prepare(ops.read_row, None, 0),
            ConfigError,
            "prepare: expected one of accumulate_, .* 'read_row'",
        ),
        (lambda: ops.prepare(torch.add, x, u), ConfigError, "prepare: expected one of"),
        (lambda: ops.prepare(ops.sgd_, x, u[1:], lr=0.1), ShapeMismatch, r"x: expected shape \[3000\]"),
        (lambda: ops.prepare(ops.sgd_, x.double(), u, lr=0.1), DTypeMismatch, "x: expected torch.float32"),
        (lambda: ops.prepare(ops.sgd_, wide, u, lr=0.1), ShapeMismatch, "x: expected a contiguous vector"),
        (lambda: ops.prepare(ops.sgd_, x, u.double(), lr=0.1), DTypeMismatch, "expected dense float32"),
        (lambda: ops.prepare(ops.sgd_, x, torch.empty(D, device="meta"), lr=0.1), DTypeMismatch, "meta"),
        # each call reads its arguments in place, and of these there would be copies
        (lambda: ops.prepare(ops.sgd_, x, wide, lr=0.1), ConfigError, "prepare: update: expected contiguous torch"),
        (lambda: ops.prepare(ops.sgd_, x, [u[:9], wide[9:]], lr=0.1), ConfigError, "prepare: update"),
        (lambda: ops.prepare(ops.sgd_, x, torch._neg_view(u), lr=0.1), ConfigError, "prepare: update"),
        (lambda: ops.prepare(ops.sgd_, x, u.numpy(), lr=0.1), ConfigError, "prepare: update"),
        (lambda: ops.prepare(ops.sgd_, x, np.float32(1.0), lr=0.1), ConfigError, "prepare: update"),
        (lambda: ops.prepare(ops.accumulate_, u, u[:-1]), ShapeMismatch, "acc: expected shape"),
        (lambda: ops.prepare(ops.gather, u, u), ConfigError, "out overlaps the update"),
        (lambda: ops.prepare(ops.sgd_, x, u), TypeError, "lr"),
    ):
        before = x.clone(), u.clone()
        with pytest.raises(error, match=words):
            call()
        assert same_bits(x, before[0]) and same_bits(u, before[1])
        assert ops.inspect(u).finite  # a refused preparation leaves nothing behind


def freed(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def smaller(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(4 * D - 4)


def replaced(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(D)


def shorter(tensor: torch.Tensor) -> None:
    tensor.resize_(D - 1)


@pytest.mark.parametrize("which", ["x", "u", "m"])
@pytest.mark.parametrize("change", [freed, smaller, replaced, shorter])
def test_memory_that_is_not_there_any_more(change: Callable[[torch.Tensor], None], which: str) -> None:
    t = tensors(1)
    call = ops.prepare(ops.momentum_, t["x"], t["u"], t["m"], lr=0.1)
    call()
    old = {key: t[key].clone() for key in ("x", "u", "m") if key != which}
    change(t[which])
    for _ in range(2):
        with pytest.raises(ConfigError, match="the memory of a tensor was freed, moved or replaced"):
            call()
    assert all(same_bits(t[key], tensor) for key, tensor in old.items())


@pytest.mark.parametrize("which", ["x", "u"])
def test_a_view_whose_storage_was_freed(which: str) -> None:
    t = {"x": vector(D + 40, 1)[40:], "u": vector(D + 40, 2)[40:]}
    call = ops.prepare(ops.sgd_, t["x"], t["u"], lr=0.1)
    freed(t[which])
    with pytest.raises(ConfigError, match="freed, moved or replaced"):
        call()
    with pytest.raises((ConfigError, DTypeMismatch), match="freed"):
        ops.prepare(ops.sgd_, t["x"], t["u"], lr=0.1)


def test_a_freed_vector_is_refused_by_name() -> None:
    x, u = vector(D, 1), vector(D, 2)
    freed(x)
    with pytest.raises(ConfigError, match="x: its memory was freed"):
        ops.sgd_(x, u, lr=0.1)
    with pytest.raises(ConfigError, match="acc: its memory was freed"):
        ops.accumulate_(x, u)


def test_vectors_without_elements() -> None:
    none = torch.empty(0)
    assert ops.prepare(ops.sgd_, none, torch.empty(0), lr=0.1)() is none
    assert ops.prepare(ops.inspect, none)() == (True, 0.0)


def test_a_round_that_does_not_exist() -> None:
    x, t = vector(D, 1), tensors(1)
    for how in ({"correction": 0}, {"correction": 1, "betas": (1.0, 0.9)}):
        with pytest.raises(ConfigError, match="correction: expected a round from 1 on"):
            ops.adam_(x, t["u"], t["m"], t["v"], lr=0.1, **how)
