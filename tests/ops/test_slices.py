"""A slice that knows where it begins has the bits of the whole: the ops, and servers of all presets that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.presets import OF_THE_WHOLE, PRESETS, Call, calls, model, numbers, tensors, update

import fastagg
from fastagg import ops
from fastagg.errors import CheckpointError, ConfigError
from fastagg.rules import moments
from fastagg.storage.cache import FORMATS, ClientCache

pytestmark = pytest.mark.kernel

D = 3 * ops.GROUP + 1000
WHOLE = [(0, D)]
SLICES = [(0, ops.GROUP), (ops.GROUP, 3 * ops.GROUP), (3 * ops.GROUP, D)]
ADAPTIVE = [name for name in ops.OPTIMIZERS if name != "sgd"]

State = dict[str, torch.Tensor]


def joined(parts: list[State]) -> State:
    """Slices put together: rows and units have the elements in their last dimension."""
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]}


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[k].contiguous().view(torch.uint8), b[k].contiguous().view(torch.uint8)) for k in a
    )


def assert_slices_are_the_whole(play: Callable[..., State], keyed: bool) -> None:
    """`play(begin, end, origin)` on slices is `play` on the whole; without origins it is not, if random numbers are
    `keyed` by the place in the whole."""
    whole = joined([play(*at, at[0]) for at in WHOLE])
    assert same(whole, joined([play(*at, at[0]) for at in SLICES]))
    assert same(whole, joined([play(*at, 0) for at in SLICES])) != keyed


def cut(seed: int, begin: int, end: int, shift: int = 23) -> torch.Tensor:
    return numbers(seed, D, shift)[begin:end].clone()


@pytest.mark.parametrize("format", ["fp32", "8bit"])
@pytest.mark.parametrize("kind", ["single", "flush", "blend"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "amsgrad", "yogi"])
def test_steps(optimizer: str, kind: str, format: str) -> None:
    if format == "8bit" and optimizer == "sgd":
        return

    def play(begin: int, end: int, origin: int) -> State:
        x, state = cut(1, begin, end), moments.zeros(optimizer, format, end - begin)
        for step in range(2):
            along: dict[str, Any] = {"single": {}, "flush": {"acc": cut(3, begin, end), "scale": 0.3},
                                     "blend": {"base": cut(4, begin, end), "weight": 0.6}}[kind]  # fmt: skip
            keyed = {"rounding": (7, step)} if format == "8bit" else {}
            ops.step_(
                x, cut(5 + step, begin, end, 29), optimizer=optimizer, lr=0.1, gain=0.9, origin=origin, **along,
                **keyed, **state,
            )  # fmt: skip
        return {"x": x, **state}

    assert_slices_are_the_whole(play, keyed=format == "8bit")


def cached(kind: str, format: str, optimizer: str, eight: bool) -> Callable[..., State]:
    """Some arrivals into rows, the sum and the model."""

    def play(begin: int, end: int, origin: int) -> State:
        size = end - begin
        cache, x, total = ClientCache(size, 3, format, seed=11), cut(1, begin, end), torch.zeros(size)
        cache.data.zero_(), cache.scales.zero_()  # of the slot that is never written
        acc = torch.zeros(size)
        state = moments.zeros(optimizer, "8bit" if eight else "fp32", size)
        for arrival in range(4):
            slot = arrival % 2
            how: dict[str, Any] = {
                "cache": cache, "write": slot, "read": slot if arrival > 1 else -1, "client": slot, "arrival": arrival,
                "origin": origin, "gain": 0.9,
            }  # fmt: skip
            step: dict[str, Any] = {"optimizer": optimizer, "lr": 0.1, "sum_scale": -0.5, **state}
            if eight:
                step["rounding"] = (7, arrival)
            given = cut(5 + arrival, begin, end, 29)
            if kind.startswith("mean"):
                terms = [(1 - slot, 0.5)] if kind == "mean, terms" and arrival else []
                ops.cached_step_(x, given, sum=total, terms=terms, **how, **step)
            elif kind == "calibrated" and arrival % 2:
                terms = [(slot, 1.0), (1 - slot, -0.5)]
                ops.cached_step_(x, given, sum=total, acc=acc, terms=terms, acc_scale=0.5, **how, **step)
            else:
                ops.cached_step_(None, given, acc=acc, fresh=arrival == 0, weight=0.7, **how)
        rows = {f"row {slot}": cache.row(slot) for slot in range(2)}
        return {"x": x, "sum": total, "acc": acc, "data": cache.data, "scales": cache.scales, **rows, **state}

    return play


@pytest.mark.parametrize("kind", ["mean", "mean, terms", "calibrated", "calibrated, no step"])
@pytest.mark.parametrize("format", FORMATS)
def test_cached_steps(format: str, kind: str) -> None:
    assert_slices_are_the_whole(cached(kind, format, "sgd", False), keyed=format != "fp32")


@pytest.mark.parametrize("optimizer", ADAPTIVE)
@pytest.mark.parametrize("kind", ["mean, terms", "calibrated"])
def test_cached_steps_with_moments_in_8_bits(kind: str, optimizer: str) -> None:
    assert_slices_are_the_whole(cached(kind, "int4", optimizer, True), keyed=True)


CUTTABLE = [name for name in PRESETS if not name.startswith(OF_THE_WHOLE)]
ARRIVALS = 27  # with five clients every block of the sum has its turn within 20


def servers(name: str, slices: list[tuple[int, int]], at_origins: bool = True) -> list[fastagg.Server]:
    whole = model(D)
    return [PRESETS[name](whole[a:b].clone(), seed=5, origin=a if at_origins else 0) for a, b in slices]


def play(held: list[fastagg.Server], slices: list[tuple[int, int]], sequence: list[Call]) -> None:
    for call in sequence:
        for server, (begin, end) in zip(held, slices, strict=True):
            if call.number is None:
                server.dispatch(call.client)
            else:
                given = update(call.number, D)[begin:end]
                server.receive(call.client, given, num_samples=1 + call.number % 3)


@pytest.mark.parametrize("name", CUTTABLE)
def test_servers_of_slices_are_the_server_of_the_whole(name: str) -> None:
    sequence = list(calls(name, ARRIVALS))
    whole, slices = servers(name, WHOLE), servers(name, SLICES)
    play(whole, WHOLE, sequence)
    half = len(sequence) // 2 + 1
    play(slices, SLICES, sequence[:half])
    states = [server.state_dict() for server in slices]
    slices = servers(name, SLICES)
    for server, state in zip(slices, states, strict=True):
        server.load_state_dict(state)
    play(slices, SLICES, sequence[half:])
    assert whole[0].steps == slices[0].steps > 8
    assert same(tensors(whole[0]), joined([tensors(server) for server in slices]))


@pytest.mark.parametrize("name", ["ACE, int8", "ACE, of five", "CA2FL, bf16"])
def test_without_origins_slices_of_servers_differ(name: str) -> None:
    sequence = list(calls(name, ARRIVALS))
    whole, slices = servers(name, WHOLE), servers(name, SLICES, at_origins=False)
    play(whole, WHOLE, sequence)
    play(slices, SLICES, sequence)
    assert not same(tensors(whole[0]), joined([tensors(server) for server in slices]))


def test_a_state_of_another_slice_is_refused() -> None:
    """Slices of a model have the same length, so only their origin distinguishes them."""
    first, second = (fastagg.FedBuff(torch.zeros(ops.GROUP), origin=at) for at in (0, ops.GROUP))
    second.load_state_dict(second.state_dict())
    with pytest.raises(CheckpointError, match="origin is 65536, this server's is 0"):
        first.load_state_dict(second.state_dict())


def test_a_loaded_server_knows_where_it_begins(tmp_path: Any) -> None:
    fastagg.FedBuff(torch.zeros(10), origin=ops.GROUP).save(tmp_path / "slice")
    assert fastagg.load(tmp_path / "slice").origin == ops.GROUP


@pytest.mark.parametrize("origin", [1, 1024, ops.GROUP - 1, ops.GROUP + 256, -1, -ops.GROUP])
def test_an_origin_elsewhere_is_refused(origin: int) -> None:
    with pytest.raises(ConfigError, match=f"origin: expected .*{origin}"):
        fastagg.FedBuff(torch.zeros(10), origin=origin)
    x, total, cache = torch.ones(300), torch.ones(300), ClientCache(300, 1, "int8")
    cache.data.zero_()
    for call in (
        lambda: ops.step_(x, torch.ones(300), optimizer="sgd", lr=1.0, origin=origin),
        lambda: ops.cached_step_(None, torch.ones(300), cache=cache, write=0, sum=total, origin=origin),
    ):
        with pytest.raises(ConfigError, match=f"origin: expected a multiple of 65536, got {origin}"):
            call()
    assert torch.equal(x, torch.ones(300)) and torch.equal(total, torch.ones(300)) and not cache.data.any()


@pytest.mark.parametrize("origin", [1.0, "0", None, True])
def test_an_origin_that_is_no_number_is_refused(origin: Any) -> None:
    with pytest.raises(ConfigError, match="origin"):
        fastagg.FedBuff(torch.zeros(10), origin=origin)
