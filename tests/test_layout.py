"""Models and updates of every form to a flat vector and back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import Residual, Tied
from torch import nn

import fastagg
from fastagg.errors import DTypeMismatch, NonFiniteUpdate, ShapeMismatch
from fastagg.layout import Layout


def trained(model: nn.Module) -> nn.Module:
    """A copy after one step on random data, so that parameters and BatchNorm's buffers have moved."""
    other = copy.deepcopy(model)
    opt = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.randn(6, 1, 5, 5)).square().sum().backward()
    opt.step()
    return other


def test_a_module_round_trips_with_its_buffers_apart() -> None:
    model = Residual()
    server = fastagg.FedBuff(model, buffer_size=1)
    names = [name for name, _ in model.named_parameters()]
    assert server.layout.size == sum(p.numel() for p in model.parameters()) == server.flat.numel()
    task = server.dispatch("a")
    assert all(torch.equal(task.params[k], v) for k, v in model.state_dict().items())
    after = trained(model)
    server.receive("a", task.delta(after))
    target = Residual()
    target.load_state_dict(server.parameters())  # strict: every name, every shape
    for name, p in target.named_parameters():
        torch.testing.assert_close(p, dict(after.named_parameters())[name])
    for name, b in target.named_buffers():
        assert torch.equal(b, dict(after.named_buffers())[name]), name
    flat = torch.cat([dict(after.named_parameters())[n].detach().reshape(-1) for n in names])
    torch.testing.assert_close(server.flat, flat)


def test_tied_and_frozen_parameters() -> None:
    model = Tied()
    server = fastagg.FedBuff(model, buffer_size=1)
    assert server.layout.size == 15
    task = server.dispatch(0)
    after = copy.deepcopy(model)
    with torch.no_grad():
        after.embed.weight += 1.0
    server.receive(0, task.delta(after))
    target = Tied()
    target.load_state_dict(server.parameters())
    assert target.out.weight is target.embed.weight
    torch.testing.assert_close(target.embed.weight, after.embed.weight)
    assert torch.equal(target.frozen.weight, model.frozen.weight)


def test_views_share_the_servers_memory_and_follow_it() -> None:
    for params in (
        {"w": torch.zeros(2, 3), "b": torch.zeros(3)},
        [np.zeros((2, 3), np.float32), np.zeros(3, np.float32)],
    ):
        server = fastagg.FedBuff(params, buffer_size=1)
        views, flat = server.parameters(), server.flat
        first = next(iter(views.values())) if isinstance(views, dict) else views[0]
        for turn in range(4):  # alternately beside (the version was dispatched) and in place
            server.dispatch("a")
            if turn % 2:
                server.dispatch("b")
            server.receive("a", torch.ones(9))
            assert first.data_ptr() == flat.data_ptr() == server.flat.data_ptr()
            assert torch.equal(flat, torch.full((9,), turn + 1.0)) and float(first[0, 0]) == turn + 1.0


@pytest.mark.parametrize("size", [100, 1_000_000])  # below and above the size at which memory is recycled
def test_what_was_dispatched_never_changes(size: int) -> None:
    server = fastagg.FedBuff(torch.zeros(size), buffer_size=1)
    kept = []
    for version in range(6):
        view = server.dispatch("a").flat[size // 2 :]  # a view alone must keep the memory
        kept.append(view.numpy() if version % 2 else view)
        server.receive("a", torch.ones(size))
    for version, view in enumerate(kept):
        assert (np.asarray(view) == version).all()


dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    specs=st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=6), seed=st.integers(0, 99), how=st.integers(0, 2)
)
def test_lists_of_any_shapes_and_half_precision(specs: list, seed: int, how: int) -> None:
    g = torch.Generator().manual_seed(seed)
    params = [torch.randn(shape, generator=g).to(dtype) for shape, dtype in specs]
    server = fastagg.FedBuff(params, buffer_size=1)
    task = server.dispatch(0)
    for mine, theirs in zip(task.params, params, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(mine, theirs)
    update = [torch.randn(shape, generator=g).to(dtype) for shape, dtype in specs]
    if how == 1:  # not contiguous
        update = [u.mT.contiguous().mT if u.dim() >= 2 else u for u in update]
    if how == 2:
        update = torch.cat([u.float().reshape(-1) for u in update])
    server.receive(0, update)
    want = torch.cat([p.float().reshape(-1) for p in params])
    moved = update if how == 2 else torch.cat([u.float().reshape(-1) for u in update])
    torch.testing.assert_close(server.flat, want + moved)


def test_channels_last_and_float64_models() -> None:
    model = Residual().double().to(memory_format=torch.channels_last)
    server = fastagg.FedBuff(model, buffer_size=1)
    task = server.dispatch(0)
    assert task.params["head.weight"].dtype == torch.float64
    after = copy.deepcopy(model)
    with torch.no_grad():
        after.stem[0].weight += 0.5
    server.receive(0, task.delta(after))
    torch.testing.assert_close(server.parameters()["stem.0.weight"], after.stem[0].weight, rtol=1e-6, atol=1e-6)


def test_flower_style_lists_with_integer_buffers() -> None:
    params = [v.numpy() for v in Residual().state_dict().values()]
    server = fastagg.FedBuff(params, buffer_size=2)
    for client, count in ((0, 3), (1, 9)):
        server.dispatch(client)
        update = [np.full_like(p, count) for p in params]
        server.receive(client, update)
    counters = [a for a in server.parameters() if not a.is_floating_point()]
    assert [int(c) for c in counters] == [9, 9]  # the largest, still integers


def test_models_without_parameters_and_empty_arrays() -> None:
    server = fastagg.FADAS([torch.zeros(0), torch.zeros(0, 3)], buffer_size=1)
    server.dispatch(0)
    assert server.receive(0, [torch.zeros(0), torch.zeros(0, 3)]).applied
    assert fastagg.FedBuff(nn.ReLU(), buffer_size=1).flat.numel() == 0


def test_a_layout_survives_its_spec() -> None:
    layout = Layout.of(Tied())
    assert Layout.from_spec(layout.spec()).entries == layout.entries


@pytest.mark.parametrize(
    ("params", "update", "error", "words"),
    [
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, ShapeMismatch, "'a'.*'b'"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, ShapeMismatch, r"\[2\].*\[3\]"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2), "z": torch.zeros(1)}, ShapeMismatch, "'z'"),
        ([torch.zeros(2)], [torch.zeros(2), torch.zeros(1)], ShapeMismatch, "expected 1 arrays, got 2"),
        ([torch.zeros(2)], {"a": torch.zeros(2)}, ShapeMismatch, "mapping"),
        (torch.zeros(2), torch.zeros(3), ShapeMismatch, r"\[2\].*\[3\]"),
        (torch.zeros(2), torch.zeros(2, 1), ShapeMismatch, r"\[2\]"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.float64)}, DTypeMismatch, "'a'.*float64"),
        ({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.int64)}, DTypeMismatch, "int64"),
        (torch.zeros(2), "nonsense", DTypeMismatch, "str"),
        ({"bn.running_mean": torch.zeros(1), "w": torch.zeros(2), "n": torch.tensor(0)},
         {"w": torch.zeros(2), "n": torch.tensor(1)}, ShapeMismatch, "running_mean"),
    ],
)  # fmt: skip
def test_updates_that_do_not_fit(params: object, update: object, error: type[Exception], words: str) -> None:
    server = fastagg.FedBuff(params, buffer_size=1)
    server.dispatch(0)
    with pytest.raises(error, match=words):
        server.receive(0, update)


def test_models_that_are_none() -> None:
    for params, error in (
        (torch.zeros(2, 2), ShapeMismatch),
        ("a model", DTypeMismatch),
        ([torch.zeros(2, dtype=torch.complex64)], DTypeMismatch),
        (torch.tensor([1.0, float("nan")]), NonFiniteUpdate),
    ):
        with pytest.raises(error):
            fastagg.FedBuff(params)
