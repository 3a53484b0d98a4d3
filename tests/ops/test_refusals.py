"""What the ops and the extension refuse: by a named error, before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from support.kernels import moments, vector

import fastagg
from fastagg import ops
from fastagg.errors import ConfigError, DTypeMismatch, ShapeMismatch
from fastagg.removed import REMOVED
from fastagg.storage.cache import ClientCache

pytestmark = pytest.mark.kernel

native = fastagg._build.native
D = 3000
MOST_ARGUMENTS = 6


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


# ── ranges and overlaps ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "blocks", [(-1, None, 1), (0, 4, 1), (0, -1, 1), (0, None, 0), (0, None, -1), (-1, 0, 1), (0, 2**40, 1)]
)
def test_blocks_that_are_not_there(blocks: tuple[int, int | None, int]) -> None:
    cache, total, weights = rows(), vector(D, 5), torch.ones(2)
    refused(lambda: ops.recompute_sum_(total, cache, weights, *blocks), "blocks: expected 0 <= first", total)
    first, last, stride = blocks
    where = {"weights": weights.data_ptr(), "sum": total.data_ptr()}
    given = {"first": first, "last": 3 if last is None else last, "stride": stride}
    refused(lambda: native.recompute_sum(cache.native, **where, **given), "blocks: expected 0 <= first", total)


def test_blocks_that_are_there() -> None:
    cache, weights = rows(), torch.ones(2)
    whole = ops.recompute_sum_(torch.zeros(D), cache, weights)
    pieces = torch.zeros(D)
    for first, last, stride in ((0, 3, 2), (1, 2, 1), (3, 3, 1), (2, 0, 5)):  # the last two hold none
        ops.recompute_sum_(pieces, cache, weights, first, last, stride)
    assert torch.equal(pieces, whole) and (whole != 0).float().mean() > 0.9


def shifts(size: int = D) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """A vector, another one that overlaps it, and the memory of both."""
    for shift in (1, 16, size - 1):
        both = vector(size + shift, shift)
        yield both[:size], both[shift:], both
        yield both[shift:], both[:size], both


def test_gather_into_the_update() -> None:
    for update, out, both in shifts():
        refused(lambda out=out, update=update: ops.gather(update, out), "out overlaps the update", both)
        refused(lambda o=out, u=update: ops.gather([u[:7], u[7:]], o), "out overlaps the update", both)
    one = vector(D, 1)
    refused(lambda: ops.gather(one, one), "out overlaps the update", one)


def test_accumulate_into_the_update() -> None:
    for update, acc, both in shifts():
        refused(lambda acc=acc, update=update: ops.accumulate_(acc, update), "acc overlaps the update", both)
    acc = vector(D, 1)
    for pieces in (
        [acc[D // 2 :], acc[: D // 2]],
        [torch.ones(4), acc[: D - 4]],  # where the sum begins, but not where this piece belongs
        [acc.view(torch.float16)[:D]],  # the same beginning, but numbers of another width
    ):
        refused(lambda pieces=pieces: ops.accumulate_(acc, pieces), "acc overlaps the update", acc)
    twice, again = acc * 2, acc * 4
    assert torch.equal(ops.accumulate_(acc, acc), twice)  # itself, whole or in pieces, is allowed
    assert torch.equal(ops.accumulate_(acc, [acc[:5], acc[5:]]), again)


def test_a_step_beside_the_model_that_overlaps_it() -> None:
    for x, out, both in shifts():
        refused(
            lambda x=x, out=out: ops.step_(x, vector(D, 2), optimizer="sgd", lr=1.0, out=out),
            "out overlaps x without being x", both,
        )  # fmt: skip
        cache, total = rows(), vector(D, 3)
        refused(
            lambda x=x, out=out, cache=cache, total=total: ops.cached_step_(
                x, vector(D, 2), cache=cache, write=0, read=0, sum=total, optimizer="sgd", lr=1.0, out=out
            ),
            "out overlaps x without being x", both, cache.data, cache.scales, total,
        )  # fmt: skip


def test_a_sum_that_overlaps_the_update() -> None:
    cache, one = rows(), vector(D, 1)
    for update, total, both in [*shifts(), (one, one, one)]:
        refused(
            lambda u=update, t=total: ops.cached_step_(None, u, cache=cache, write=1, sum=t),
            "sum overlaps the update", both, cache.data, cache.scales,
        )  # fmt: skip


def test_a_difference_into_what_it_is_of() -> None:
    for given, out, both in shifts():
        other = vector(D, 9)
        refused(lambda a=given, out=out, b=other: ops.difference(a, b, out), "out overlaps a without being a", both)
        refused(lambda b=given, out=out, a=other: ops.difference(a, b, out), "out overlaps b without being b", both)
    a, b = vector(D, 1), vector(D, 2)
    expected = a - b
    assert torch.equal(ops.difference(a.clone(), b, held := a.clone()), expected) and torch.equal(held, expected)
    assert torch.equal(ops.difference(a, b, a), expected)  # one of them is allowed
    assert torch.equal(ops.difference(vector(D, 1), b, b), expected)


# ── names, moments, caches ──────────────────────────────────────────────────────────────────────────────────────


def test_names_that_mean_nothing() -> None:
    x = vector(D, 1)
    with pytest.raises(ConfigError, match="'int2'"):
        ClientCache(D, 1, "int2")
    refused(lambda: ops.step_(x, vector(D, 2), optimizer="adamw", lr=1.0), "unknown optimizer 'adamw'; known: sgd", x)
    refused(
        lambda: native.Rows(format="int2", size=D, slots=1, data=x.data_ptr(), scales=0),
        "rows: unknown 'int2'; known: .*int8",
    )


@pytest.mark.parametrize("optimizer", ops.OPTIMIZERS)
def test_moments_that_are_missing_or_not_asked_for(optimizer: str) -> None:
    x, owned = vector(D, 1), ops.OPTIMIZERS[optimizer]
    given = moments("amsgrad", D, 2)
    for name in ("m", "v", "vhat"):
        wrong = {key: given[key] for key in given if (key in owned) != (key == name)}
        words = f"{optimizer} {'needs' if name in owned else 'has no'} {name}"
        refused(
            lambda wrong=wrong: ops.step_(x, vector(D, 3), optimizer=optimizer, lr=1.0, **wrong), words, x,
            *given.values(),
        )  # fmt: skip


def test_structs_that_lack_something() -> None:
    cache = rows()
    data, scales = cache.data.data_ptr(), cache.scales.data_ptr()
    for call, words in {
        "no scales": (lambda: native.Rows(format="int8", size=D, slots=2, data=data, scales=0), "needs scales"),
        "scales": (lambda: native.Rows(format="bf16", size=D, slots=2, data=data, scales=scales), "has no scales"),
        "no data": (lambda: native.Rows(format="fp32", size=D, slots=2, data=0, scales=0), "data is missing"),
        "slots": (lambda: native.Rows(format="fp32", size=D, slots=0, data=data, scales=0), "at least one slot"),
        "pieces": (lambda: native.Update([(0, 4, 0)]), "address of zero"),
        "size": (lambda: native.Update([(64, -4, 0)]), "negative"),
        "dtype": (lambda: native.Update([(64, 4, 3)]), "unknown dtype 3"),
    }.values():
        refused(call, words)


def test_a_cache_to_write_to_that_is_unlike_the_one_read() -> None:
    cache, total, update = rows("int8"), vector(D, 5), vector(D, 6)
    for other, words in (
        (rows("int4"), "write_cache: expected int8 rows of 3000, got int4 rows of 3000"),
        (rows("int8", D + 256), "write_cache: expected int8 rows of 3000, got int8 rows of 3256"),
        (rows("int8", D - 1), "write_cache: expected int8 rows of 3000, got int8 rows of 2999"),
    ):
        refused(
            lambda other=other: ops.cached_step_(None, update, cache=cache, write=0, sum=total, write_cache=other),
            words, cache.data, cache.scales, other.data, other.scales, total,
        )  # fmt: skip


def test_none_where_a_vector_belongs() -> None:
    """As of any object that is no array: an error, and nothing else."""
    x, u, lost = vector(D, 1), vector(D, 2), (AttributeError, DTypeMismatch, TypeError)
    for call in (
        lambda: ops.sgd_(None, u, lr=0.1),
        lambda: ops.sgd_(x, None, lr=0.1),
        lambda: ops.sgd_(x, [u[:5], None], lr=0.1),
        lambda: ops.sgd_(x, u, lr=None),
        lambda: ops.accumulate_(None, u),
        lambda: ops.gather(u, None),
        lambda: ops.difference(x, u, None),
        lambda: ops.difference(None, u, x),
        lambda: ops.inspect(None),
        lambda: ops.distances(u, None, x),
        lambda: ops.distances(u, x, "x"),
        lambda: ops.step_(x, u, optimizer="adam", lr=0.1, m=x, v=3.0),
        lambda: ops.step_(x, u, optimizer="sgd", lr=0.1, gain="1"),
        lambda: ops.step_(x, u, optimizer="sgd", lr=0.1, betas=0.9),
        lambda: ops.cached_step_(x, u, cache=3, write=0, sum=x.clone(), optimizer="sgd", lr=0.1),
        lambda: ops.cached_step_(x, u, cache=rows(), write=0, sum=x.clone(), optimizer="sgd", lr=0.1, momentum=0.9),
        lambda: ops.cached_step_(None, u, cache=rows(), write=0.5, sum=x),
        lambda: ops.cached_step_(None, u, cache=rows(), write=0, sum=x, terms=[0]),
    ):
        refused(call, "None|expected|argument|number|attribute|needed|integer", x, u, error=lost)
    refused(lambda: ops.step_(x, u, optimizer=3, lr=0.1), "unknown optimizer 3", x)
    for key in ({"client": -1}, {"client": 2**32}, {"arrival": 2**64}, {"write": 2**64}):
        refused(lambda key=key: ops.cached_step_(None, u, cache=rows(), sum=x, **{"write": 0, **key}), "expected", x)


@pytest.mark.parametrize(
    "slots",
    [{"write": 2}, {"write": -2}, {"read": 2}, {"read": -2}, {"terms": [(2, 1.0)]}, {"terms": [(0, 1.0), (-1, 1.0)]}],
)
def test_slots_that_are_not_there(slots: dict[str, Any]) -> None:
    cache, total, x = rows(), vector(D, 5), vector(D, 6)
    how = {"write": 0, "read": 1, **slots}
    for model, step in ((None, {}), (x, {"optimizer": "sgd", "lr": 1.0})):
        refused(
            lambda model=model, step=step: ops.cached_step_(model, vector(D, 7), cache=cache, sum=total, **how, **step),
            "slot", cache.data, cache.scales, total, x,
        )  # fmt: skip


def test_slots_of_the_cache_to_write_to() -> None:
    """Its own number of rows counts, not that of the cache that is read."""
    cache, other, total = rows(slots=3), rows(slots=1), torch.zeros(D)
    refused(
        lambda: ops.cached_step_(None, vector(D, 7), cache=cache, write=1, sum=total, write_cache=other),
        "slots", cache.data, other.data, total,
    )  # fmt: skip
    ops.cached_step_(None, vector(D, 7), cache=other, write=2, sum=total, write_cache=cache)


def test_rows_that_are_not_there() -> None:
    cache, out = rows(), vector(D, 1)
    for slot in (-1, 2):
        refused(lambda slot=slot: ops.read_row(cache, slot), f"slot: expected 0..1, got {slot}")
        refused(lambda slot=slot: native.read_row(cache.native, slot=slot, out=out.data_ptr()), f"no slot {slot}", out)


def test_vectors_of_another_length_or_type() -> None:
    cache, total = rows(), vector(D, 5)
    held = (cache.data, cache.scales, total)

    def call(**how: Any) -> Any:
        given = {"update": vector(D, 7), "sum": total, "cache": cache, "write": 0, **how}
        return ops.cached_step_(None, given.pop("update"), **given)

    refused(lambda: call(update=vector(D + 1, 7), sum=vector(D + 1, 7)), "as the cache's rows have", *held,
            error=ShapeMismatch)  # fmt: skip
    refused(lambda: call(sum=vector(D - 1, 7)), "sum: expected shape", *held, error=ShapeMismatch)
    refused(lambda: call(sum=total.double()), "sum: expected", *held, error=DTypeMismatch)
    refused(lambda: call(cache=None), "cache: needed", *held)
    refused(lambda: call(sum=None), "sum: needed", *held)
    weights = torch.ones(3)
    refused(lambda: ops.recompute_sum_(total, cache, weights), "weights: expected shape", *held, error=ShapeMismatch)


# ── the extension's own door ────────────────────────────────────────────────────────────────────────────────────


def test_addresses_go_by_name() -> None:
    """Two addresses in the wrong order would overwrite memory. Keywords prevent this."""
    x = vector(D, 1)
    at, update = x.data_ptr(), native.Update([(x.data_ptr(), D, 0)])
    for call in (
        lambda: native.fold([(update, 0, 1.0)], at, at),
        lambda: native.copy(update, 0, D, 4, at),
        lambda: native.crc32c(update, [4 * D], 0, False),
        lambda: native.recompute_sum(rows().native, at, at, 0, 1, 1),
        lambda: native.add_rows(rows().native, [(0, 0, 1, at)], at, 1.0),
        lambda: native.settle_rows([(0, at)], at, D),
        lambda: native.read_row(rows().native, 0, at),
        lambda: native.Update([(at, D, 0)], 0),
        lambda: native.Rows("fp32", D, 1, at, 0),
        lambda: native.soft_targets_f32(at, 1.0, (1, 1), None),
    ):
        refused(call, "incompatible", x, error=TypeError)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"prefetc": 64}, "unknown setting 'prefetc'"),
        ({"name": 1}, "unknown setting 'name'"),
        ({"prefetch": 100}, "prefetch: expected a multiple of 64 in 0..1048576, got 100"),
        ({"prefetch": -64}, "prefetch: expected .* got -64"),
        ({"prefetch": 2**20 + 64}, "prefetch: "),
        ({"stream_from": -1}, "stream_from: expected 0.."),
        ({"width": 64}, "width: "),
        ({"width": 384}, "width: expected 128, 256 or 512"),
        ({"width": 1024}, "width: "),
        ({"wide_below": -1}, "wide_below: "),
        ({"spin": -1}, "spin: expected 0..100000, got -1"),
        ({"spin": 100_001}, "spin: "),
        ({"group": 0}, "group: expected a multiple of 1024 in 4096..65536"),
        ({"group": 3072}, "group: "),
        ({"group": 5000}, "group: "),
        ({"group": 131_072}, "group: "),
        ({"places": 0}, "places: "),
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


def _signatures(module: Any) -> Iterator[tuple[str, str]]:
    """(name, arguments) of every function, constructor and method of the extension, submodules included."""
    for name, thing in vars(module).items():
        if isinstance(thing, ModuleType):
            yield from ((f"{name}.{inner}", arguments) for inner, arguments in _signatures(thing))
        elif isinstance(thing, type):
            for member in (thing.__init__, *(getattr(thing, key) for key in vars(thing) if key[0] != "_")):
                yield from _documented(f"{name}.{getattr(member, '__name__', '')}", member)
        elif callable(thing):
            yield from _documented(name, thing)


def _documented(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    for arguments in re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> ", getattr(thing, "__doc__", None) or "", re.MULTILINE):
        yield name, arguments


def _count(arguments: str) -> int:
    """Arguments of a signature, without self and the star."""
    while "[" in arguments:
        arguments = re.sub(r"\[[^\[\]]*\]", "", arguments)
    names = [one.split(":")[0].split("=")[0].strip() for one in arguments.split(",")]
    return len([name for name in names if name not in ("", "self", "*", "/")])


def test_nothing_in_the_extension_takes_more_than_six_arguments() -> None:
    found = list(_signatures(native))
    names = {name for name, _ in found}
    assert {"fold", "Rows.__init__", "Update.one", "engine.Optimizer.__init__"} <= names
    counts = {name: _count(arguments) for name, arguments in found}
    assert counts["recompute_sum"] == 6 and counts["Rows.__init__"] == 5 and counts["fold"] == 3
    # These take everything by name, so that nothing can be mixed up.
    by_name = {name for name, arguments in found if re.match(r"self: [\w.]+, (kind: str, )?\*, ", arguments)}
    many = {name for name, count in counts.items() if count > MOST_ARGUMENTS}
    assert many == {
        "Table.train", "engine.BufferedSetting.__init__", "engine.Engine.__init__",
        "engine.Optimizer.__init__", "engine.Settings.__init__", "log.Reader.__init__"
    } and many <= by_name  # fmt: skip


# ── numbers that the extension could not take ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", [-1, 2**32])
def test_checksums_out_of_range(before: int) -> None:
    refused(lambda: ops.crc32c(vector(D, 0), before), "crc32c: expected a checksum")


def test_models_to_fold_that_do_not_go_together() -> None:
    x, one, out = vector(D, 0), vector(D, 1), vector(D, 2)
    refused(lambda: ops.fold([], [], [], None, out), "there is no model", out)
    refused(lambda: ops.fold([x], [None, one], [1.0], None, out), "1 models, 2 bases", out, error=ShapeMismatch)
    refused(lambda: ops.fold([x], [None], [1.0, 1.0], None, out), "and 2 weights", out, error=ShapeMismatch)
    other = [x, vector(D - 1, 1)]
    refused(lambda: ops.fold(other, [None, None], [1.0, 1.0], None, None), "model 1 has 2999", error=ShapeMismatch)


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("fastagg.ops.")])
def test_names_that_left_say_what_to_use(name: str) -> None:
    with pytest.raises(AttributeError, match="is gone") as refusal:
        getattr(ops, name.removeprefix("fastagg.ops."))
    assert REMOVED[name] in str(refusal.value)
