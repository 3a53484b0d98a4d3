"""A model in parts: how it is cut, split and joined, and servers of parts beside the server of the whole."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import Residual, Tied, same
from torch import nn

import fastagg
from fastagg.model.parts import PartList

FORMS: dict[str, Callable[[], Any]] = {
    "module": Residual,
    "state_dict": lambda: Residual().state_dict(),
    "list": lambda: [p.detach() for p in Residual().parameters()],
    "NumPy's list": lambda: [p.detach().numpy() for p in Residual().parameters()],
    "half": lambda: Residual().half().state_dict(),
}


def names(cut: PartList) -> list[list[str]]:
    return [[entry.name for entry in part.layout.entries] for part in cut]


def sizes(cut: PartList) -> list[int]:
    return [sum(e.size for e in part.layout.entries if e.role != "alias") for part in cut]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 5))
def test_parts_are_of_like_size_by_the_rule_of_the_documentation(lengths: list[int], count: int) -> None:
    model = {f"m{i}.w": torch.zeros(length) for i, length in enumerate(lengths)}
    held = [length for length in lengths if length]
    if count > len(held):
        with pytest.raises(ValueError if held else fastagg.ShapeMismatch):
            fastagg.parts(model, count)
        return
    cut = fastagg.parts(model, count)
    loads = [0] * count
    for length in sorted(held, reverse=True):
        loads[loads.index(min(loads))] += length
    assert sizes(cut) == loads and same(cut.join(fastagg.FedBuff(part).parameters() for part in cut), model)
    assert max(loads) <= sum(held) / count + max(held)
    assert sorted(name for part in names(cut) for name in part) == sorted(model) and names(cut) == names(
        fastagg.parts(model, count)
    )


def test_tied_tensors_are_one_and_buffers_go_with_their_module() -> None:
    model = nn.ModuleDict({"tied": Tied(), "net": Residual(), "norm": nn.BatchNorm1d(4, affine=False)})
    cut = fastagg.parts(model, 4)
    place = {name: number for number, part in enumerate(names(cut)) for name in part}
    assert list(place) != list(model.state_dict()) and place.keys() == model.state_dict().keys()
    assert place["tied.embed.weight"] == place["tied.out.weight"]
    for module, norm in model.named_modules():
        if isinstance(norm, nn.BatchNorm2d):
            assert {place[f"{module}.{name}"] for name in dict(norm.named_buffers())} == {place[f"{module}.weight"]}
    # What has no parameter that trains in its own module goes with the first one around it.
    assert place["norm.running_mean"] == place["tied.embed.weight"] == place["tied.frozen.weight"]
    frozen = next(e for e in cut[place["tied.frozen.weight"]].layout.entries if e.name == "tied.frozen.weight")
    assert frozen.role == "constant"


def test_a_vector_is_one_part() -> None:
    (part,) = cut = fastagg.parts(torch.arange(3.0), 1)
    server = fastagg.FedBuff(part, buffer_size=1, clip_norm=9.0)  # one part is the whole
    server.dispatch(0)
    server.receive(0, *cut.split(torch.ones(3)))
    assert torch.equal(cut.join([server.parameters()]), torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_whole_model_again_in_its_form(form: str) -> None:
    model = FORMS[form]()
    cut = fastagg.parts(model, 3)
    whole = fastagg.FedBuff(model)
    servers = [fastagg.FedBuff(part) for part in cut]
    assert sum(server.layout.size for server in servers) == whole.layout.size
    for found, wanted in (
        (cut.join(server.parameters() for server in servers), whole.parameters()),
        (cut.join(server.dispatch(0).params for server in servers), whole.dispatch(0).params),
        (cut.join(cut.split(whole.parameters())), whole.parameters()),
    ):
        assert type(found) is type(wanted)
        both = [list(one.values()) if isinstance(one, dict) else one for one in (found, wanted)]
        pairs = zip(*both, strict=True)
        assert all(type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)
    assert not isinstance(found, dict) or list(found) == list(wanted)


@pytest.mark.parametrize("make", [
    lambda model: fastagg.FedBuff(model, buffer_size=2),
    lambda model: fastagg.FADAS(model, lr=0.1, buffer_size=2, delay_threshold=1),
    lambda model: fastagg.ACE(model, lr=0.1, num_clients=3, warmup="partial"),
    lambda model: fastagg.FedAsync(model, alpha=0.5),
], ids=["FedBuff", "FADAS", "ACE", "FedAsync"])  # fmt: skip
@pytest.mark.parametrize("flat", [False, True])
def test_parts_that_see_the_same_history_have_the_whole_ones_bits(make: Any, flat: bool) -> None:
    """None of these rules needs the whole model, and what they compute of an element depends on that element alone."""
    torch.manual_seed(0)
    model = Residual()
    cut, whole = fastagg.parts(model, 3), make(model)
    servers = [make(part) for part in cut]
    open_tasks: dict[int, tuple[Any, list[Any]]] = {}
    for turn in range(12):
        client = turn % 3
        if client in open_tasks:
            task, tasks = open_tasks.pop(client)
            update = torch.randn(whole.layout.size)
            trained = {n: p + torch.rand(p.shape).to(p.dtype) for n, p in task.params.items()}
            pieces = cut.split(update) if flat else [t.delta(p) for t, p in zip(tasks, cut.split(trained), strict=True)]
            whole.receive(client, update if flat else task.delta(trained), task=task.id)
            for server, task, piece in zip(servers, tasks, pieces, strict=True):
                server.receive(client, piece, task=task.id)
        open_tasks[client] = whole.dispatch(client), [server.dispatch(client) for server in servers]
    assert whole.version and [server.version for server in servers] == [whole.version] * 3
    assert same(cut.join(server.parameters() for server in servers), whole.parameters())


@pytest.mark.parametrize("make", [
    lambda part: fastagg.FedBuff(part, clip_norm=1.0), lambda part: fastagg.AsyncFedED(part, lam=1.0, eps=1.0),
    lambda part: fastagg.FedAC(part, lr=1.0, buffer_size=2, num_clients=2),
], ids=["clip_norm", "AsyncFedED", "FedAC"])  # fmt: skip
def test_a_rule_that_needs_the_whole_model_may_be_meant_by_part(make: Any) -> None:
    for part in fastagg.parts(Residual(), 2, by_part=True):
        assert make(part).version == 0


@pytest.mark.filterwarnings("ignore:params")
def test_settings_that_say_what_the_model_is_are_said_once_when_it_is_cut() -> None:
    model = {"a.w": torch.ones(4), "a.mean_of_all": torch.zeros(4), "b.w": torch.ones(4), "b.v": torch.ones(4)}
    how = {"*.mean_of_all": "max"}
    cut = fastagg.parts(model, 2, buffers=how, tied=[("b.w", "b.v")])
    assert names(cut) == [["a.w", "a.mean_of_all"], ["b.w", "b.v"]]
    servers = [fastagg.FedBuff(part, buffer_size=1, buffers=how) for part in cut]
    for server, update in zip(servers, cut.split({n: torch.full((4,), 2.0) for n in model}), strict=True):
        server.dispatch(0)
        server.receive(0, update)
    assert servers[0].parameters()["a.mean_of_all"].tolist() == [2.0] * 4 and servers[1].layout.size == 4


def test_a_part_is_kept_in_a_folder_and_in_a_file(tmp_path: Any) -> None:
    cut = fastagg.parts(Residual(), 2)

    def make() -> fastagg.Server:
        return fastagg.FADAS(cut[1], buffer_size=1)

    with fastagg.open(tmp_path / "part-1", make) as server:
        server.dispatch(0)
        server.receive(0, torch.ones(server.layout.size))
        server.save(tmp_path / "part.pt")
        kept = server.parameters()
    with fastagg.open(tmp_path / "part-1", make) as server:
        assert same(server.parameters(), kept)
    assert same(fastagg.load(tmp_path / "part.pt").parameters(), kept)
    with pytest.raises(fastagg.ConfigError, match="size"):  # another part's folder
        fastagg.open(tmp_path / "part-1", lambda: fastagg.FADAS(cut[0], buffer_size=1))
    again = pickle.loads(pickle.dumps(cut))
    assert names(again) == names(cut) and again.layout.same_as(cut.layout)
