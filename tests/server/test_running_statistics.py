"""Updates with BatchNorm's statistics: native code reads them, and nobody can tell it from Python's reading."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import Residual, same
from support.properties import examples
from torch import Tensor

import fastagg
from fastagg.errors import ConfigError, FastaggError, NonFiniteUpdate, ShapeMismatch
from fastagg.model import Layout, ModelState

MAKERS: dict[str, Callable[..., fastagg.Server]] = {
    "FedBuff": lambda params, **more: fastagg.FedBuff(params, buffer_size=3, **more),
    "FADAS": lambda params, **more: fastagg.FADAS(params, lr=0.01, buffer_size=2, delay_threshold=1, **more),
    "FedAsync, hinge": lambda params, **more: fastagg.FedAsync(params, policy="hinge", b=1, **more),
    "ACE, int8": lambda params, **more: fastagg.ACE(params, lr=0.1, num_clients=3, cache="int8", **more),
    "DelayAdaptiveASGD, drop": lambda params, **more: fastagg.DelayAdaptiveASGD(
        params, lr=0.1, delay_threshold=1, stale="drop", **more
    ),
    "FedAvg": lambda params, **more: fastagg.FedAvg(params, clients_per_round=2, weighting="uniform", **more),
    "a rate of zero": lambda params, **more: fastagg.Server(
        params, direction=fastagg.Buffer(2), optimizer=fastagg.SGD(lr=0.0), **more
    ),
}


def state(seed: int) -> dict[str, Tensor]:
    """Return an update of the model: small changes, and statistics as clients have them."""
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in Residual().state_dict().items():
        if name.endswith("num_batches_tracked"):
            found[name] = torch.randint(0, 50, (), generator=rng)
        else:
            found[name] = 0.1 * torch.randn(value.shape, generator=rng)
            if name.endswith("running_var"):
                found[name].abs_()
    return found


PARAMETERS = [name for name, _ in Residual().named_parameters()]


def joined(sent: dict[str, Tensor], names: Iterable[str]) -> Tensor:
    return torch.cat([sent[name].reshape(-1) for name in names])


def vectors(sent: dict[str, Tensor]) -> ModelState:
    counters = [value for name, value in sent.items() if name.endswith("tracked")]
    return ModelState(joined(sent, PARAMETERS), joined(sent, [name for name in sent if "running" in name]), counters)


FORMS: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "by name": dict,
    "ordered": OrderedDict,
    "another order": lambda sent: dict(reversed(sent.items())),
    "a list": lambda sent: list(sent.values()),
    "NumPy": lambda sent: {name: value.numpy() for name, value in sent.items()},
    "without statistics": lambda sent: {name: sent[name] for name in PARAMETERS},
    "a short list": lambda sent: tuple(sent[name] for name in PARAMETERS),
    "a vector": lambda sent: joined(sent, PARAMETERS),
    "vectors": vectors,
}


def pair(maker: str, buffers: str) -> list[fastagg.Server]:
    torch.manual_seed(0)
    model = Residual()
    return [MAKERS[maker](model, buffers=buffers) for _ in range(2)]


def outcome(server: fastagg.Server, client: int, sent: Any, **more: Any) -> Any:
    try:
        return server.receive(client, sent, **more)
    except FastaggError as error:  # a round takes no client twice
        return type(error), str(error)


@examples(60)
@given(
    maker=st.sampled_from(list(MAKERS)),
    buffers=st.sampled_from(["mean", "latest", "keep"]),
    answers=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(list(FORMS))), min_size=1, max_size=12),
)
def test_native_code_and_python_agree_to_the_bit(maker: str, buffers: str, answers: list[tuple[int, str]]) -> None:
    """With ``kind=`` Python reads the update; without it native code does."""
    mine, other = pair(maker, buffers)
    for server in (mine, other):
        for client in range(3):
            server.dispatch(client)
    held = mine.parameters(), other.parameters()
    for number, (client, form) in enumerate(answers):
        sent = FORMS[form](state(number))
        for server in (mine, other):
            server.dispatch(client)
        assert outcome(mine, client, sent) == outcome(other, client, sent, kind=other.update_kind)
        assert same(mine.state_dict(), other.state_dict())
        assert same(*held) and same(mine.snapshot(), other.snapshot())
    for server in (mine, other):
        server.close_round()
    assert same(mine.state_dict(), other.state_dict())


@pytest.mark.parametrize("form", list(FORMS))
def test_python_reads_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = pair("FedBuff", "mean")
    monkeypatch.setattr(Layout, "parse", None)
    for client in range(3):
        server.dispatch(client)
        server.receive(client, FORMS[form](state(client)))
    assert server.version == 1


def test_the_mean_and_the_largest() -> None:
    server, _ = pair("FedBuff", "mean")
    sent = [state(seed) for seed in range(3)]
    for client in range(3):
        server.dispatch(client)
    outcomes = server.receive_many([(client, one) for client, one in enumerate(sent)])
    assert [receipt.applied for receipt in outcomes] == [False, False, True]
    model = server.parameters()
    for name, value in model.items():
        if name.endswith("num_batches_tracked"):
            assert value.dtype == torch.int64 and value.shape == ()
            assert int(value) == max(int(one[name]) for one in sent)
        elif "running" in name:
            mean = sum(one[name].double() for one in sent) / 3
            assert torch.allclose(value.double(), mean, rtol=3e-7, atol=0)


def test_a_task_holds_the_statistics_of_its_version() -> None:
    server, _ = pair("FedBuff", "mean")
    for client in range(3):
        server.dispatch(client)
    before = server.dispatch("late")
    old = {name: value.clone() for name, value in before.views.items()}
    server.receive(0, state(0))
    assert same(dict(server.dispatch(7).views), old), "statistics change with a step only"
    for client in (1, 2):
        server.receive(client, state(client))
    assert same(dict(before.views), old)
    assert not same(dict(server.dispatch(7).views), old)


BAD: list[tuple[str, Any, type[FastaggError]]] = [
    ("stem.1.running_var", -1.0, ConfigError),
    ("stem.1.running_var", math.nan, NonFiniteUpdate),
    ("body.1.running_mean", math.inf, NonFiniteUpdate),
    ("body.1.running_mean", 1e36, NonFiniteUpdate),
    ("body.1.num_batches_tracked", -1, ConfigError),
    ("head.weight", math.nan, NonFiniteUpdate),
]


@pytest.mark.parametrize(("name", "value", "kind"), BAD)
def test_bad_statistics_are_refused_by_name(name: str, value: Any, kind: type[FastaggError]) -> None:
    server, _ = pair("FedBuff", "mean")
    for client in range(2):
        server.dispatch(client)
    server.receive(0, state(0))
    before = server.state_dict()
    sent = state(1)
    sent[name].view(-1)[-1] = value
    with pytest.raises(kind, match=name.replace(".", r"\.")):
        server.receive(1, sent)
    (outcome,) = server.receive_many([(1, list(sent.values()))])
    assert isinstance(outcome, kind)
    assert same(server.state_dict(), before)
    server.receive(1, state(1))


def test_bad_shapes_and_names_are_refused() -> None:
    server, _ = pair("FedBuff", "mean")
    server.dispatch(0)
    before = server.state_dict()
    sent = state(0)
    wrong: list[Any] = [
        {**sent, "stem.1.running_mean": torch.zeros(5)},
        {**sent, "stem.1.num_batches_tracked": torch.zeros(2, dtype=torch.int64)},
        {name: value for name, value in sent.items() if name != "stem.1.running_mean"},
        {**sent, "more": torch.zeros(1)},
        list(sent.values())[:-1],
        vectors(sent)._replace(buffers=torch.zeros(5)),
        vectors(sent)._replace(flat=torch.zeros(5)),
        vectors(sent)._replace(flat=None),
        vectors(sent)._replace(flat=vectors(sent).flat[None]),
        vectors(sent)._replace(counters=None),
        vectors(sent)._replace(counters=[1, 2]),
        vectors(sent)._replace(counters=vectors(sent).counters[:-1]),
        vectors(sent)._replace(counters=[*vectors(sent).counters, torch.tensor(1)]),
    ]
    for update in wrong:
        with pytest.raises(ShapeMismatch):
            server.receive(0, update)
        assert same(server.state_dict(), before)


def test_unusual_types_are_pythons() -> None:
    """Statistics in double precision and counters of 32 bits become the model's own types."""
    mine, other = pair("FedBuff", "mean")
    for client in range(3):
        usual = state(client)
        strange = {
            name: value.int() if name.endswith("tracked") else value.double() if "running" in name else value
            for name, value in usual.items()
        }
        for server, sent in ((mine, usual), (other, strange)):
            server.dispatch(client)
            server.receive(client, sent)
    assert mine.version == 1 and same(mine.state_dict(), other.state_dict())


def test_a_clients_memory_may_change_afterwards() -> None:
    mine, other = pair("FedBuff", "mean")
    for client in range(3):
        sent = state(client)
        for server in (mine, other):
            server.dispatch(client)
        mine.receive(client, {name: value.clone() for name, value in sent.items()})
        other.receive(client, sent)
        for value in sent.values():
            value.fill_(7)
    assert same(mine.state_dict(), other.state_dict())


@pytest.mark.parametrize("durability", ["none", "step", "arrival"])
@pytest.mark.parametrize("width", [4, 2000])
def test_a_journal_has_the_statistics(width: int, durability: str, tmp_path: Path) -> None:
    """Small updates are copied into the record, and large ones are read where their senders have them."""

    def make() -> fastagg.Server:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width))
        return fastagg.FedBuff(model, buffer_size=2)

    def answer(server: fastagg.Server, client: int) -> None:
        sent = {name: torch.full_like(value, client) for name, value in server.dispatch(client).params.items()}
        if client == 4:
            sent = {name: value for name, value in sent.items() if "running" not in name and "tracked" not in name}
        server.receive(client, sent)
        for value in sent.values():
            value.fill_(9)

    plain = make()
    with fastagg.open(tmp_path / "a", make, durability=durability) as server:
        for client in range(5):
            answer(server, client)
            answer(plain, client)
        assert same(server.parameters(), plain.parameters())
    with fastagg.open(tmp_path / "a", make, durability=durability) as found:
        assert same(found.parameters(), plain.parameters())
        answer(found, 5)
        answer(plain, 5)
        assert same(found.parameters(), plain.parameters())
    assert np.isclose(float(plain.parameters()["1.running_mean"][0]), 5.0)
