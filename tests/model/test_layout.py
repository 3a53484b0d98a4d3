"""Models and updates of every form to a flat vector and back."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import Residual, Tied
from torch import Tensor, nn

import fastagg


def arrays(model: Any) -> list[Tensor]:
    """Return a model's arrays in order, for every form of model."""
    values = model.values() if isinstance(model, dict) else model if isinstance(model, list) else [model]
    return [torch.as_tensor(value) for value in values]


def test_a_state_dict_is_taken_as_the_module_it_came_from() -> None:
    model = Residual()
    module, mapping = fastagg.FedBuff(model), fastagg.FedBuff(MappingProxyType(model.state_dict()))
    assert torch.equal(module.flat, mapping.flat)
    assert module.layout.buffer_size == mapping.layout.buffer_size == 16  # mean and variance of two BatchNorms of 4
    names = {e.name: e.role for e in mapping.layout.entries}
    assert names["stem.1.num_batches_tracked"] == "counter" and names["stem.1.running_var"] == "buffer"
    assert {e.name: e.role for e in module.layout.entries} == names
    Residual().load_state_dict(mapping.parameters())


@pytest.mark.parametrize("as_list", [False, True])
def test_an_update_of_the_whole_module_may_hold_what_does_not_train(as_list: bool) -> None:
    model = Tied()
    server = fastagg.FedBuff(model, buffer_size=1)
    server.dispatch(0)
    update = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    server.receive(0, list(update.values()) if as_list else update)
    assert torch.equal(server.flat, model.embed.weight.detach().reshape(-1) + 1)  # once, though it has two names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["module", "state_dict", "list", "flat"])
def test_the_difference_is_from_what_was_dispatched(form: str, dtype: torch.dtype) -> None:
    model = Residual().to(dtype)
    params = {
        "module": model,
        "state_dict": model.state_dict(),
        "list": [p.detach() for p in model.parameters()],
        "flat": torch.cat([p.detach().reshape(-1) for p in model.parameters()]),
    }[form]
    server = fastagg.FedBuff(params, buffer_size=1)
    d = server.layout.size
    server.dispatch(0)
    server.receive(0, torch.full((d,), 1.23e-4))  # now the model is none that half precision can hold
    task = server.dispatch(0)
    none = task.delta(task.params)
    server.receive(0, none)
    assert torch.equal(server.flat, task.flat)  # a client that did not train changes nothing
    task = server.dispatch(0)
    moved = [(a + 0.25).to(dtype) if a.is_floating_point() else a for a in arrays(task.params)]
    other = dict(zip(task.params, moved, strict=True)) if isinstance(task.params, dict) else moved
    got = task.delta(other if form != "flat" else moved[0])
    assert type(got) is {"module": dict, "state_dict": dict, "list": list, "flat": Tensor}[form]
    before = [a.double() for a in arrays(task.params)]
    for role, mine, old, new in zip(
        [e.role for e in server.layout.entries], arrays(got), before, map(Tensor.double, moved), strict=True
    ):
        if role == "parameter":
            assert mine.dtype == torch.float32 and torch.equal(mine, (new - old).float())
        else:  # buffers are sent as they are
            assert torch.equal(mine.double(), new)
    assert not {a.data_ptr() for a in arrays(got)} & {a.data_ptr() for a in moved}, "nothing is the client's own memory"
    if form != "flat":  # all in one vector
        first = [a for a, e in zip(arrays(got), server.layout.entries, strict=True) if e.role == "parameter"]
        assert len({a.untyped_storage().data_ptr() for a in first}) == 1


dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(
    specs=st.lists(st.tuples(shapes, dtypes, dtypes), min_size=1, max_size=6).filter(
        lambda specs: any(0 not in shape for shape, _, _ in specs)
    ),
    seed=st.integers(0, 99),
    how=st.sampled_from(["plain", "transposed", "strided", "numpy", "flat"]),
    named=st.booleans(),
)
def test_any_shapes_and_dtypes(specs: list, seed: int, how: str, named: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    params = [torch.randn(shape, generator=g).to(dtype) for shape, dtype, _ in specs]
    names = [f"layer{i}.weight" for i in range(len(specs))]
    server = fastagg.FedBuff(dict(zip(names, params, strict=True)) if named else params, buffer_size=1)
    task = server.dispatch(0)
    for mine, theirs in zip(arrays(task.params), params, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert torch.equal(mine, theirs.float().to(theirs.dtype))
    sent = [torch.randn(shape, generator=g) for shape, _, _ in specs]
    sent = [u.to(torch.float32 if t is torch.float64 else t) for u, (_, _, t) in zip(sent, specs, strict=True)]
    update: Any = list(sent)
    if how == "transposed":
        update = [u.mT.contiguous().mT if u.dim() >= 2 else u for u in update]
    if how == "strided":
        update = [torch.stack([u, -u], dim=-1)[..., 0] for u in update]
    if how == "numpy":
        update = [u if u.dtype is torch.bfloat16 else np.array(u.numpy(), order="F") for u in update]
    if how == "flat":
        update = torch.cat([u.float().reshape(-1) for u in update])
    server.receive(0, dict(zip(names, update, strict=True)) if named and how != "flat" else update)
    want = torch.cat([p.float().reshape(-1) for p in params]) + torch.cat([u.float().reshape(-1) for u in sent])
    assert torch.equal(server.flat, want)


def test_numpys_scalars_are_arrays() -> None:
    params = [np.array(1.0, np.float32), np.array(3), np.float32(2)]  # as a list of a model with 0-dimensional parts
    server = fastagg.FedBuff(params, buffer_size=1, buffers={"1": "max"})
    server.dispatch(0)
    server.receive(0, [params[0] - np.float32(0.5), params[1] + 1, np.float32(1)])  # arithmetic makes scalars of them
    assert [float(a) for a in server.parameters()] == [1.5, 4, 3]


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
)
def test_counters_of_any_integer_type(dtype: torch.dtype) -> None:
    params = {"w": torch.zeros(2), "n": torch.zeros(1).to(dtype)}
    server = fastagg.FedBuff(params, buffer_size=2, buffers={"n": "max"})
    for client in range(2):
        server.dispatch(client)
        assert server.receive(client, {"w": torch.ones(2), "n": torch.full((1,), 1 - client).to(dtype)}).delay == 0
    assert server.version == 1 and server.parameters()["n"].tolist() == [1] and server.parameters()["n"].dtype == dtype


class Normalized(nn.Module):
    """A buffer comes first, and there is state that is neither."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize("model", [nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)), Normalized()])
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_a_wrappers_prefix_is_named(model: nn.Module, prefix: str) -> None:
    server = fastagg.FedBuff(model)
    server.dispatch(0)
    names = {prefix + name: value for name, value in model.state_dict().items()}
    trained = {prefix + name: value for name, value in model.named_parameters()}
    for update in (names, {**names, prefix + "num": torch.zeros(2)}, trained, dict(reversed(names.items()))):
        with pytest.raises(fastagg.ShapeMismatch) as told:
            server.receive(0, update)
        assert (f"remove '{prefix}'" in str(told.value)) == (prefix + "num" not in update)
