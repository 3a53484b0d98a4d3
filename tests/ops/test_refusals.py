"""What the ops and the extension refuse: by a named error, before anything is written."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import moments, vector

import fastagg
from fastagg import ops
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.storage.cache import ClientCache

pytestmark = pytest.mark.kernel

native = fastagg._build.native
D = 3000


def refused(call: Callable[[], Any], words: str, *watched: torch.Tensor, error: type[Exception] = ConfigError) -> None:
    """The call raises, and no byte of what is watched changes."""
    before = [tensor.clone() for tensor in watched]
    with pytest.raises(error, match=words):
        call()
    for tensor, held in zip(watched, before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), held.view(torch.uint8))


def rows(format: str = "int8", size: int = D, slots: int = 2) -> ClientCache:
    """A cache with something in every row."""
    cache = ClientCache(size, slots, format)
    for slot in range(slots):
        ops.cached_step_(None, vector(size, slot), cache=cache, write=slot, sum=torch.zeros(size))
    return cache


class World:
    """What the calls of the table are made of, anew for each: vectors of D numbers, caches, sums of blocks, logits."""

    def __init__(self) -> None:
        self.x, self.u, self.acc, self.base, self.out, self.total = (vector(D, seed) for seed in range(6))
        self.wide = vector(2 * D, 7)  # every other of its numbers is a vector that is not contiguous
        self.double, self.none = self.x.double(), torch.empty(0)
        for name, moment in moments("amsgrad", D, 8).items():
            setattr(self, name, moment)
        self.m: torch.Tensor
        self.v: torch.Tensor
        self.vhat: torch.Tensor
        self.coded = [torch.zeros(3072, dtype=torch.uint8) for _ in range(2)]
        self.units = torch.zeros(2, 12)
        self.cache = rows()
        self.targets, self.logits = ops.soft_targets(torch.zeros(3, 4)), torch.zeros(3, 4)
        self.freed = vector(D + 40, 9)[40:]
        self.freed.untyped_storage().resize_(0)

    def step(self, **how: Any) -> Any:
        """AMSGrad's step, but for what is given."""
        given = {"x": self.x, "update": self.u, "optimizer": "amsgrad", "lr": 0.1}
        given |= {"m": self.m, "v": self.v, "vhat": self.vhat} | how
        return ops.step_(given.pop("x"), given.pop("update"), **given)

    def coded_step(self, **how: Any) -> Any:
        """Adam's step with moments in 8 bits."""
        m, v = self.coded
        given = {"optimizer": "adam", "m": m, "v": v, "vhat": None, "units": self.units, **how}
        return self.step(**given)

    def store(self, x: torch.Tensor | None = None, **how: Any) -> Any:
        """A row is written; with a model, and a step."""
        given = {"update": self.u, "sum": self.total, "cache": self.cache, "write": 0, **how}
        return ops.cached_step_(x, given.pop("update"), **given)

    def bytes(self) -> dict[str, bytes]:
        """All memory."""
        caches = {name: one for name, one in vars(self).items() if isinstance(one, ClientCache)}
        held = {name: one for name, one in vars(self).items() if isinstance(one, torch.Tensor) and name != "freed"}
        held |= {f"{name}.{part}": getattr(one, part) for name, one in caches.items() for part in ("data", "scales")}
        held |= {f"coded.{place}": one for place, one in enumerate(self.coded)}
        return {name: one.numpy().tobytes() for name, one in held.items()}


SHAPE, DTYPE, CONFIG = ShapeMismatch, DTypeMismatch, ConfigError
# What is called; the error; what its message says.
REFUSED: list[tuple[Callable[[World], Any], type[Exception] | tuple[type[Exception], ...], str]] = [
    # a vector of another length, shape, type, or none
    (lambda w: w.step(update=w.u[1:]), SHAPE, r"x: expected shape \[2999\], got \[3000\]"),
    (lambda w: w.step(x=w.x.view(30, 100)), SHAPE, r"x: expected shape \[3000\], got \[30, 100\]"),
    (lambda w: w.step(m=w.wide[::2]), SHAPE, "m: expected a contiguous vector, got stride 2"),
    (lambda w: w.step(m=w.double), DTYPE, "m: expected torch.float32, got torch.float64"),
    (lambda w: w.step(v=w.v[1:]), SHAPE, "v: expected shape"),
    (lambda w: w.step(vhat=w.vhat.half()), DTYPE, "vhat: expected torch.float32"),
    (lambda w: w.step(x=torch.empty(D, device="meta")), DTYPE, "x is on meta, the update on cpu"),
    (lambda w: w.step(acc=w.acc[1:]), SHAPE, "acc: expected shape"),
    (lambda w: w.step(base=w.double), DTYPE, "base: expected torch.float32"),
    (lambda w: w.step(out=w.out[1:]), SHAPE, "out: expected shape"),
    (lambda w: w.step(x=w.freed), CONFIG, "x: its memory was freed"),
    (lambda w: w.step(m=3.0), DTYPE, "m: expected a torch tensor, got float"),
    (lambda w: ops.step_(None, w.u, optimizer="sgd", lr=0.1), DTYPE, "x: expected a torch tensor, got NoneType"),
    (lambda w: ops.accumulate_(None, w.u), DTYPE, "acc: expected a torch tensor"),
    (lambda w: ops.accumulate_(w.acc[1:], w.u), SHAPE, "acc: expected shape"),
    (lambda w: ops.accumulate_(w.freed, w.u), CONFIG, "acc: its memory was freed"),
    (lambda w: ops.accumulate_(w.double, w.u), DTYPE, "acc: expected torch.float32"),
    (lambda w: ops.difference(w.x, w.u, None), DTYPE, "out: expected a torch tensor"),
    (lambda w: ops.difference(None, w.u, w.x), DTYPE, "a: expected a torch tensor"),
    (lambda w: ops.difference(w.x, w.u.view(30, 100), w.out), SHAPE, "b: expected shape"),
    (lambda w: ops.difference(w.x[1:], w.u, w.out), SHAPE, "a: expected shape"),
    (lambda w: ops.distances(w.u, None, w.x), DTYPE, "x: expected a torch tensor"),
    (lambda w: ops.distances(w.u, w.x, "x"), DTYPE, "base: expected a torch tensor"),
    (lambda w: ops.distances(w.u, w.x[1:], w.base), SHAPE, "x: expected shape"),
    (lambda w: w.store(update=vector(D + 1, 7), sum=vector(D + 1, 7)), SHAPE, "expected 3000 elements, as the cache's"),
    (lambda w: w.store(sum=w.total[1:]), SHAPE, "sum: expected shape"),
    (lambda w: w.store(sum=w.double), DTYPE, "sum: expected torch.float32"),
    (lambda w: w.store(acc=w.acc[1:]), SHAPE, "acc: expected shape"),
    # an update
    (lambda w: w.step(update=w.double), DTYPE, "expected dense float32, float16 or bfloat16, got torch.float64"),
    (lambda w: w.step(update=torch.arange(D)), DTYPE, "got torch.int64"),
    (lambda w: w.step(update="an update"), DTYPE, "got str"),
    (lambda w: w.step(update=np.zeros(D, dtype=">f4")), DTYPE, "got a >f4 array"),
    (lambda w: ops.accumulate_(w.acc, [w.u[:9], np.zeros(D - 9, dtype=np.int32)]), DTYPE, "got a int32 array"),
    (lambda w: ops.accumulate_(w.acc, w.u.to_sparse()), DTYPE, "to_dense"),
    (lambda w: ops.accumulate_(w.acc, object()), DTYPE, "got object"),
    (lambda w: ops.accumulate_(w.acc, w.freed), DTYPE, "freed"),
    (lambda w: ops.step_(w.x, [w.u[:5], None], optimizer="sgd", lr=0.1), DTYPE, "got NoneType"),
    (lambda w: ops.inspect(None), DTYPE, "got NoneType"),
    (lambda w: ops.inspect(torch.empty(D, device="meta")), DTYPE, "meta"),
    # an optimizer
    (lambda w: w.step(optimizer="adamw"), CONFIG, "unknown optimizer 'adamw'; known: sgd, "),
    (lambda w: w.step(optimizer=3), CONFIG, "unknown optimizer 3"),
    (lambda w: w.step(vhat=None), CONFIG, "amsgrad needs vhat"),
    (lambda w: w.step(optimizer="adam"), CONFIG, "adam has no vhat"),
    (lambda w: w.step(acc=w.acc, base=w.base), CONFIG, "acc and base are two different directions"),
    (lambda w: w.step(correction=0), CONFIG, "correction: expected a round from 1 on"),
    (lambda w: w.step(correction=1, betas=(1.0, 0.9)), CONFIG, "correction: .* betas below 1"),
    (lambda w: w.step(correction=1, betas=(0.9, 1.0)), CONFIG, "correction: .* betas below 1"),
    (lambda w: w.step(betas=0.9), CONFIG, "betas: expected two numbers, got 0.9"),
    (lambda w: w.step(betas=(0.9,)), CONFIG, "betas: expected two numbers"),
    (lambda w: w.step(lr=None), TypeError, "number"),
    (lambda w: w.step(gain="1"), TypeError, "number"),
    (lambda w: w.coded_step(units=w.units[:1]), SHAPE, r"units: expected a contiguous \[2, 12\], got \[1, 12\]"),
    (lambda w: w.coded_step(units=w.units.double()), DTYPE, "units: expected torch.float32"),
    (lambda w: w.coded_step(m=w.coded[0][:D]), SHAPE, r"m: expected shape \[3072\]"),
    (lambda w: w.coded_step(v=w.v), DTYPE, "v: expected torch.uint8"),
    (lambda w: w.coded_step(optimizer="sgd", m=None, v=None), CONFIG, "sgd has no moments"),
    (lambda w: w.coded_step(optimizer="delayed"), CONFIG, "delayed has no moments in 8 bits"),
    (lambda w: w.coded_step(units=None), DTYPE, "m: expected torch.float32"),
    (lambda w: w.coded_step(rounding=(-1, 0)), CONFIG, "rounding: expected 0 to"),
    (lambda w: w.coded_step(rounding=(0, 2**64)), CONFIG, "rounding: expected 0 to"),
    (lambda w: w.coded_step(rounding=3), CONFIG, "rounding: expected two numbers"),
    # rows
    (lambda w: w.store(cache=None), CONFIG, "cache: needed"),
    (lambda w: w.store(cache=3), AttributeError, "int"),
    (lambda w: w.store(sum=None), CONFIG, "sum: needed"),
    (lambda w: w.store(w.x, sum=None, acc=w.acc, optimizer="sgd", lr=1.0), CONFIG, "sum: needed"),
    (lambda w: w.store(w.x, optimizer="sgd", lr=0.1, momentum=0.9), TypeError, "unexpected keyword argument"),
    (lambda w: w.store(write=0.5), TypeError, "integer"),
    (lambda w: w.store(terms=[0]), CONFIG, "terms: expected two numbers"),
    (lambda w: w.store(client=-1), CONFIG, "client: expected 0 to 4294967295, got -1"),
    (lambda w: w.store(client=2**32), CONFIG, "client: expected 0 to 4294967295"),
    (lambda w: w.store(arrival=2**64), CONFIG, "arrival: expected 0 to 18446744073709551615"),
    *(
        (lambda w, how=how, step=step: w.store(w.x if step else None, **{"read": 1, **how}, **step), CONFIG, "slots: ")
        for how in ({"write": 2}, {"write": -2}, {"write": 2**64}, {"read": 2}, {"read": -2}, {"terms": [(2, 1.0)]},
                    {"terms": [(0, 1.0), (-1, 1.0)]})
        for step in ({}, {"optimizer": "sgd", "lr": 1.0})
    ),
    (lambda w: ops.read_row(w.cache, -1), CONFIG, "slot: expected 0..1, got -1"),
    (lambda w: ops.read_row(w.cache, 2), CONFIG, "slot: expected 0..1, got 2"),
    # overlaps: what a step has written it would read again
    *(
        (lambda w, a=a, b=b, make=make: make(w, w.wide[a : a + D], w.wide[b : b + D]), CONFIG, words)
        for a, b in ((0, 1), (1, 0), (0, 16), (16, 0), (0, D - 1), (D - 1, 0))
        for make, words in (
            (lambda w, p, q: ops.accumulate_(q, p), "acc overlaps the update"),
            (lambda w, p, q: w.step(x=p, out=q), "out overlaps x without being x"),
            (lambda w, p, q: w.store(p, out=q, read=0, optimizer="sgd", lr=1.0), "out overlaps x without being x"),
            (lambda w, p, q: w.store(update=p, sum=q), "sum overlaps the update"),
            (lambda w, p, q: ops.difference(p, w.u, q), "out overlaps a without being a"),
            (lambda w, p, q: ops.difference(w.u, p, q), "out overlaps b without being b"),
        )
    ),
    (lambda w: w.store(update=w.total), CONFIG, "sum overlaps the update"),
    (lambda w: ops.accumulate_(w.acc, [w.acc[D // 2 :], w.acc[: D // 2]]), CONFIG, "acc overlaps the update"),
    # where the sum begins, but not where this piece belongs; the same beginning, but numbers of another width
    (lambda w: ops.accumulate_(w.acc, [torch.ones(4), w.acc[: D - 4]]), CONFIG, "acc overlaps the update"),
    (lambda w: ops.accumulate_(w.acc, [w.acc.view(torch.float16)[:D]]), CONFIG, "acc overlaps the update"),
    # distillation
    *(
        (lambda w, alpha=alpha: ops.distillation_loss(w.logits, w.targets, alpha=alpha), CONFIG, "alpha")
        for alpha in (-0.1, 1.1, (0.8, 0.2), (0.2,), "half", (0.1, math.nan))
    ),
    (lambda w: ops.distillation_loss(torch.zeros(3, 5), w.targets), SHAPE, "student"),
    (lambda w: ops.distillation_loss(torch.zeros(2, 4), w.targets), SHAPE, "student"),
    (lambda w: ops.distillation_loss(w.logits.double(), w.targets), DTYPE, "probs"),
    (lambda w: ops.distillation_loss(w.logits.to(torch.int64), w.targets), DTYPE, "student"),
    (lambda w: ops.soft_targets(torch.zeros(3, 0)), SHAPE, "logits"),
    (lambda w: ops.soft_targets(w.logits, scale=0.0), CONFIG, "scale"),
]  # fmt: skip


def test_what_is_refused_and_that_nothing_is_written() -> None:
    wrong, world = [], World()
    before = world.bytes()
    for place, (call, error, words) in enumerate(REFUSED):
        try:
            call(world)
            found = "not refused"
        except Exception as raised:
            found = "" if isinstance(raised, error) and re.search(words, str(raised)) else repr(raised)
        if world.bytes() != before:
            found, world = found + " something was written", World()
        if found:
            wrong.append(f"{place}: expected {words!r}: {found}")
    assert not wrong, "\n".join(wrong)


def test_what_may_overlap() -> None:
    """A sum with itself, whole or in pieces; a difference into one of its two."""
    acc, a, b = vector(D, 1), vector(D, 1), vector(D, 2)
    twice, again, expected = acc * 2, acc * 4, a - b
    assert torch.equal(ops.accumulate_(acc, acc), twice)
    assert torch.equal(ops.accumulate_(acc, [acc[:5], acc[5:]]), again)
    assert torch.equal(ops.difference(a, b, a), expected)
    assert torch.equal(ops.difference(vector(D, 1), b, b), expected)


@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_moments_that_are_missing_or_not_asked_for(optimizer: str) -> None:
    world, owned = World(), ops.OPTIMIZERS[optimizer]
    for name in ("m", "v", "vhat"):
        given = {key: getattr(world, key) if (key in owned) != (key == name) else None for key in ("m", "v", "vhat")}
        words = f"{optimizer} {'needs' if name in owned else 'has no'} {name}"
        refused(lambda given=given: world.step(optimizer=optimizer, **given), words, world.x)


# ── the extension's own door ────────────────────────────────────────────────────────────────────────────────────


def test_names_and_slots_that_the_extension_refuses() -> None:
    x, u, cache = vector(D, 1), vector(D, 2), rows()
    pieces, at = [(u.data_ptr(), D, 0)], x.data_ptr()
    step = {"kind": "single", "optimizer": "sgd", "x": at, "out": at, "lr": 1.0}
    row = {"kind": "mean", "sum": at, "rows": cache.native}
    for call, error, words in (
        (lambda: ClientCache(D, 1, "int2"), ConfigError, "'int2'"),
        (lambda: native.Rows(format="int2", size=D, slots=1, data=at, scales=0), ConfigError, "rows: unknown 'int2'"),
        (lambda: native.read_row(cache.native, slot=2, out=at), ConfigError, "no slot 2"),
        (lambda: native.step(pieces, None, {**step, "optimizer": "adamw"}), ConfigError, "unknown 'adamw'; known: sgd"),
        (lambda: native.step(pieces, None, {**step, "kind": "double"}), ConfigError, "direction: unknown 'double'"),
        (lambda: native.step(pieces, None, {**step, "y": at}), TypeError, "unknown argument 'y'"),
        (lambda: native.step(pieces, None, {**step, "x": 0}), ConfigError, "x and x_out are needed"),
        (lambda: native.step(pieces, None, {"kind": "single"}), ConfigError, "needs an optimizer"),
        (lambda: native.step(pieces, None, {**row, "read": 2}), ConfigError, "no slot 2"),
        (lambda: native.step(pieces, None, {**row, "write": 2}), ConfigError, "no slot 2"),
        (lambda: native.step(pieces, None, {**row, "terms": [(2, 1.0)]}), ConfigError, "no slot 2"),
        (lambda: native.step([(0, D, 0)], None, step), ConfigError, "address of zero"),
        (lambda: native.step(pieces, step), TypeError, "expected pieces"),
        (lambda: native.accumulate((1,), None, {}), TypeError, "expected a list"),
        (lambda: native.accumulate([1], None, {}), TypeError, "expected a tuple"),
        (lambda: native.accumulate([(1, 2)], None, {}), TypeError, "exactly 3 arguments"),
    ):
        refused(call, words, x, cache.data, cache.scales, error=error)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"prefetc": 64}, "unknown setting 'prefetc'"),
        ({"name": 1}, "unknown setting 'name'"),
        ({"prefetch": 100}, "prefetch: expected a multiple of 64 in 0..1048576, got 100"),
        ({"prefetch": 2**20 + 64}, "prefetch: "),
        ({"cache": -1}, "cache: expected 0.."),
        ({"width": 384}, "width: expected 128, 256 or 512"),
        ({"width": 1024}, "width: "),
        ({"wide_below": -1}, "wide_below: "),
        ({"spin": -1}, "spin: expected 0..100000, got -1"),
        ({"group": 0}, "group: expected a multiple of 1024 in 4096..65536"),
        ({"group": 5000}, "group: "),
        ({"group": 131_072}, "group: "),
        ({"places": 3}, "places: expected a power of two"),
        ({"places": 64}, "places: expected 1..32, got 64"),
    ],
)
def test_tuning_out_of_range(setting: dict[str, int], words: str) -> None:
    before = native.tuning()
    refused(lambda: native.set_tuning({"group": 8192, "wide_below": 12345, **setting}), "tuning: " + words)
    assert native.tuning() == before  # the good ones with it were not set either


def test_tuning_in_range(tuning: Callable[..., None]) -> None:
    before = native.tuning()
    tuning(prefetch=128, places=2)
    assert native.tuning() == {**before, "prefetch": 128, "places": 2}
    assert before.keys() == native.default_tuning().keys()
