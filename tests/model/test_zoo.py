"""Every kind of model in every form, through a server: what is a number is combined, all else is kept."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.models import Residual
from support.zoo import FORMS, ZOO, Adapted, Animal, arrays, settings, trained
from torch import Tensor, nn

import fastagg

pytestmark = pytest.mark.filterwarnings(
    *(f"ignore:params. .*{said}" for said in ("same memory", "stepped like parameters", "are kept"))
)


def named(model: Any, names: list[str]) -> dict[str, Tensor]:
    values = model.values() if isinstance(model, dict) else model
    return dict(zip(names, map(torch.as_tensor, values), strict=True))


def formed(values: dict[str, Tensor], form: str, animal: Animal) -> Any:
    if form == "module":
        module = animal.make()
        module.load_state_dict(values)
        return module
    held = arrays(values) if "NumPy" in form else values
    return list(held.values()) if "list" in form else held


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ZOO)
def test_a_round(name: str, form: str, tmp_path: Path) -> None:
    animal = ZOO[name]
    torch.manual_seed(1)
    module = animal.make()
    if animal.refused is not None:
        if form == "module":
            with pytest.raises(animal.refused, match="lazy.*run it once" if name == "lazy" else "params"):
                fastagg.FedBuff(module)
        return
    more = settings(animal, form)
    server = fastagg.FedAvg(FORMS[form](module), clients_per_round=2, weighting="uniform", **more)
    if form == "flat":
        assert server.layout.size == sum(p.numel() for p in module.parameters() if p.requires_grad)
        return
    begun = {key: value.clone() for key, value in module.state_dict().items()}
    names = list(begun)
    for turn in range(3):
        tasks = [server.dispatch(client) for client in range(2)]
        for task, value in zip(tasks, (4.0, 6.0), strict=True):
            reply = formed(trained(module, named(task.params, names), value), form, animal)
            if turn == 0:
                server.receive_model(task, reply)
            else:
                server.receive(task.client, task.delta(reply), task=task.id)
        if turn == 1:
            server.save(tmp_path / "saved.pt")
            server = fastagg.load(tmp_path / "saved.pt")
    assert server.version == 3
    now = named(server.parameters(), names)
    found = server.parameters().values() if isinstance(server.parameters(), dict) else server.parameters()
    assert all(isinstance(one, np.ndarray if "NumPy" in form and name != "bf16" else Tensor) for one in found)
    trains = {key: p for key, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    for key, value in now.items():
        assert value.dtype == begun[key].dtype and value.shape == begun[key].shape, key
        untold = (form != "module" and key.startswith("frozen")) or ("list" in form and key.startswith("packed."))
        if key in animal.kept and not untold:
            assert torch.equal(value, begun[key]), key
        if key in animal.becomes:
            assert bool((value == animal.becomes[key]).all()), (key, value)
        if key in trains:  # three means of 1.0 and 1.5
            close: Any = {"rtol": 2e-2, "atol": 0} if value.element_size() == 2 else {}
            torch.testing.assert_close(value, begun[key] + 3.75, **close)
    for key, p in trains.items():  # what was one is one
        for other, q in trains.items():
            if p is q:
                assert torch.equal(now[key], now[other])
    fresh: nn.Module = animal.make()
    fresh.load_state_dict({key: value.clone() for key, value in now.items()})


@pytest.mark.parametrize("form", ["dict", "list"])
def test_parameters_that_are_named_as_one(form: str) -> None:
    """As over a wire, where their memory is not the same: a step moves them once, and they stay equal."""
    params = {"a": torch.ones(300), "b": torch.full((2,), 3.0), "c": torch.ones(300)}
    tied = [("c", "a")] if form == "dict" else [(2, 0)]
    given: Any = params if form == "dict" else list(params.values())
    server = fastagg.FedAdam(given, clients_per_round=1, lr=0.1, moments="8bit", tied=tied)
    assert server.layout.size == 302 and [e.role for e in server.layout.entries] == ["parameter", "parameter", "alias"]
    for turn in range(20):
        task = server.dispatch(0)
        update = {key: torch.sin(torch.arange(value.numel()) + turn) for key, value in params.items()}
        server.receive(0, update if form == "dict" else list(update.values()), task=task.id)
    a, _, c = server.parameters().values() if form == "dict" else server.parameters()
    assert torch.equal(a, c) and not torch.equal(a, params["a"])


def test_a_mapping_that_makes_its_arrays_has_no_ties() -> None:
    """The memory of one may become that of the next."""

    class Made(dict[str, Any]):
        def items(self) -> Any:
            return ((key, torch.full((64,), float(value))) for key, value in super().items())

        def __getitem__(self, key: str) -> Any:
            return torch.full((64,), float(super().__getitem__(key)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fastagg.FedBuff(Made(a=1, b=2, c=3)).layout.size == 192


def test_names_like_buffers_are_told_once() -> None:
    params = {"w": torch.ones(2), "vq.cluster_size": torch.ones(3), "vq.embed_avg": torch.ones(3)}
    with pytest.warns(UserWarning, match=r"'vq.cluster_size', 'vq.embed_avg' are stepped.*buffers=") as told:
        fastagg.FedBuff(params)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fastagg.FedBuff(params, buffers={"vq.*": "mean"})
    for wrong in ({"w": "average"}, {"w": "mean", "vq.*": "weighted"}):
        with pytest.raises(fastagg.ConfigError, match="buffers"):
            fastagg.FedBuff(params, buffers=wrong)


def test_what_is_kept_is_told_once() -> None:
    """By role: nothing steps it, weighs it, adds noise to it or combines it, whatever comes."""
    module = Adapted()
    module.register_buffer("places", torch.arange(4))
    module.register_buffer("ema", torch.ones(2))
    with pytest.warns(UserWarning, match=r"'places', 'packed.weight.absmax'.* are kept.*buffers=") as told:
        server = fastagg.FedAdam(module, clients_per_round=1, lr=0.1, weight_decay=0.5)
    assert len(told) == 1
    roles = {e.name: e.role for e in server.layout.entries}
    assert {name for name, role in roles.items() if role == "parameter"} == {"down.weight", "up.weight"}
    assert {name for name, role in roles.items() if role == "buffer"} == {"ema"}
    assert server.layout.size == 14
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = {"places": "keep", "packed.weight.[qs]*": "keep", "packed.weight.absmax": "mean"}
        more = fastagg.FedAvg(module, clients_per_round=1, buffers=said)
        assert {e.name for e in more.layout.entries if e.role == "buffer"} == {"ema", "packed.weight.absmax"}
        assert not any(e.role == "counter" for e in more.layout.entries)
        fastagg.FedBuff(Residual())
    with pytest.warns(UserWarning, match="'packed.weight', 'packed.weight.absmax'.* are kept"):
        assert fastagg.FedBuff(Adapted().state_dict()).layout.size == 14


def test_layers_that_torch_has_quantised() -> None:
    """Their weights are no arrays; what trains beside them is a model by itself."""
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    module = nn.ModuleDict({"base": quantised, "head": nn.Linear(4, 2)})
    with pytest.raises(fastagg.DTypeMismatch, match=r"'base.0._packed_params.dtype'.*named_parameters"):
        fastagg.FedBuff(module)
    server = fastagg.FedBuff({name: p for name, p in module.named_parameters() if p.requires_grad}, buffer_size=1)
    task = server.dispatch(0)
    server.receive(0, torch.ones(10), task=task.id)
    assert server.version == 1


def test_what_the_models_type_does_not_hold_is_refused() -> None:
    """fp16 ends at 65,504. Nothing that is handed out is infinite, and smaller updates go on."""
    for make in (fastagg.FedBuff, fastagg.FedAsync, fastagg.FedAvg):
        more: Any = {fastagg.FedBuff: {"buffer_size": 1}, fastagg.FedAvg: {"clients_per_round": 1}}.get(make, {})
        server = make({"w": torch.ones(4, dtype=torch.float16)}, **more)
        for value in (1e5, 6e4, 3e4, 1.0):
            task, before = server.dispatch(0), server.state_dict()["flat"]
            try:
                server.receive(0, {"w": torch.tensor([value, 0, 0, 0])}, task=task.id, num_samples=1)
            except fastagg.UpdateTooLarge as error:
                assert "the model's own type" in str(error) and torch.equal(server.flat, before)
            assert torch.isfinite(server.parameters()["w"]).all()
        assert server.version >= 2
    whole = fastagg.FedBuff({"w": torch.ones(4, dtype=torch.float16), "v": torch.full((2,), 1e6)}, buffer_size=1)
    whole.dispatch(0)
    assert whole.receive(0, torch.ones(6)).applied  # it began beyond


def test_what_fp32_does_not_hold_is_told_by_name() -> None:
    with pytest.warns(UserWarning, match="'count': fp32 holds 1e\\+09 in steps of 64"):
        fastagg.FedBuff({"w": torch.ones(2), "count": torch.full((2,), 1e9, dtype=torch.float64)})


def test_a_reply_without_counters_keeps_them() -> None:
    params = {"w": torch.ones(2), "bn.running_mean": torch.ones(2), "bn.num_batches_tracked": torch.tensor(7)}
    server = fastagg.FedBuff(params, buffer_size=1)
    for reply in ({"w": torch.ones(2), "bn.running_mean": torch.full((2,), 3.0)}, {"w": torch.ones(2)}):
        task = server.dispatch(0)
        server.receive(0, reply, task=task.id)
        assert server.parameters()["bn.running_mean"].tolist() == [3.0, 3.0]
        assert int(server.parameters()["bn.num_batches_tracked"]) == 7
    with pytest.raises(fastagg.ShapeMismatch, match="missing 'w'"):
        server.receive(0, {"bn.running_mean": torch.ones(2)}, task=server.dispatch(0).id)


def test_a_mask_may_be_infinite_and_parameters_may_not() -> None:
    mask = torch.full((3, 3), -float("inf")).triu(1)
    server = fastagg.FedBuff({"w": torch.ones(2), "mask": mask}, buffer_size=1)
    task = server.dispatch(0)
    with pytest.raises(fastagg.NonFiniteUpdate, match="'w'"):
        server.receive_model(task, {"w": torch.tensor([1.0, float("inf")]), "mask": mask})
    server.receive_model(task, {"w": torch.zeros(2), "mask": mask})
    assert torch.equal(server.parameters()["mask"], mask)
