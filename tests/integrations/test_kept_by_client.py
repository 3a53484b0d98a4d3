"""SCAFFOLD, FedNova and FedDyn, whose clients keep nothing: through Flower's and FLARE's messages as without them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastagg
from fastagg import registry
from fastagg.server.dispatch import Dispatch
from fastagg.sim.clients.client import Turn
from fastagg.sim.data.federated import Samples
from fastagg.sim.recipes.sections import Client

FOLDER = Path(__file__).parents[2] / "examples" / "simulator_algorithms"
CLIENTS, ROUNDS, PER_ROUND = 6, 4, 3
Sent = tuple[dict[str, Tensor], dict[str, Tensor] | None]  # an update, and what goes with it


@pytest.fixture(params=["scaffold", "fednova", "feddyn"])
def rule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(registry, "_parts", dict(registry._parts))
    monkeypatch.syspath_prepend(FOLDER)
    yield __import__(request.param)
    sys.modules.pop(request.param)


def made(rule: ModuleType) -> fastagg.Server:
    torch.manual_seed(0)
    named = {"num_clients": CLIENTS} if "num_clients" in rule.server.__code__.co_varnames else {}
    server: fastagg.Server = rule.server(nn.Linear(3, 2), clients_per_round=PER_ROUND, **named)
    return server


def work(rule: ModuleType, client: int, number: int, sent: dict[str, Tensor], extra: dict[str, Tensor]) -> Sent:
    """A client, as the simulator has it train, of what it was sent alone."""
    module = nn.Linear(3, 2)
    module.load_state_dict(sent)
    draws = torch.Generator().manual_seed(client)
    data = Samples(torch.randn(10, 3, generator=draws), torch.randint(2, (10,), generator=draws))
    start = {name: array.clone() for name, array in sent.items()}
    task: Any = SimpleNamespace(
        version=number, control=None, extra=extra, views=start, local_steps=None,
        delta=lambda trained: {name: array.detach() - start[name] for name, array in trained.state_dict().items()},
    )  # fmt: skip
    turn = Turn(task, client, number, Client(lr=0.1, batch_size=5, epochs=1 + client % 2), 0)
    update, _, *more = rule.train(module, data, turn, None)
    return update, more[0] if more else None


def by_hand(rule: ModuleType, server: fastagg.Server, tasks: list[Dispatch], number: int) -> None:
    for task in tasks:
        update, extra = work(rule, int(task.client), number, dict(task.views), task.extra)
        server.receive(task.client, update, task.version, extra=extra)


def in_rounds(rule: ModuleType, act: Any) -> fastagg.Server:
    server = made(rule)
    for number in range(ROUNDS):
        act(rule, server, [server.dispatch((number + place) % CLIENTS) for place in range(PER_ROUND)], number)
    assert server.version == ROUNDS
    return server


def test_flower_s_messages_change_no_bit(rule: ModuleType) -> None:
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, MetricRecord, RecordDict

    from fastagg.integrations.flower import tasks as messages
    from fastagg.integrations.flower.records import read, write

    def through(rule: ModuleType, server: fastagg.Server, tasks: list[Dispatch], number: int) -> None:
        for task in tasks:
            content = messages.content(task, write(dict(task.views)), {}, ("arrays", "config"))
            extra = {name: array.clone() for name, array in read(content.get("extra", {})).items()}  # type: ignore[arg-type]
            arrays = {name: array.clone() for name, array in read(content["arrays"]).items()}  # type: ignore[arg-type]
            update, more = work(rule, int(task.client), number, arrays, extra)
            records = {"arrays": write(update), "metrics": MetricRecord({"num-examples": 10})}
            records |= {"note": ConfigRecord({"fastagg-kind": "delta"})}
            records |= {} if more is None else {"extra": write(more)}
            message: Any = SimpleNamespace(has_error=lambda: False, content=RecordDict(records))
            [outcome] = server.receive_many([messages.answer(server, task, message, "num-examples")])
            assert isinstance(outcome, fastagg.Receipt), outcome

    assert torch.equal(in_rounds(rule, through).flat, in_rounds(rule, by_hand).flat)


def test_flare_s_messages_change_no_bit(rule: ModuleType) -> None:
    pytest.importorskip("nvflare")
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fastagg.integrations.goals import Settings
    from fastagg.integrations.nvflare import Traffic
    from fastagg.integrations.run import FLARE, AdapterRun, Rule

    alone, server = in_rounds(rule, by_hand), made(rule)
    traffic = Traffic(AdapterRun(Rule(FLARE, server, rounds=server.direction.synchronous), Settings()))
    traffic.start({name: array.numpy() for name, array in server.parameters().items()})
    for number in range(ROUNDS):
        sites = [str((number + place) % CLIENTS) for place in range(PER_ROUND)]
        sent = [traffic.send(site) for site in sites]
        for site, model in zip(sites, sent, strict=True):
            arrays = {name: torch.as_tensor(array).clone() for name, array in model.params.items()}
            extra = {name: torch.tensor(array) for name, array in model.meta.get("fastagg_extra", {}).items()}
            update, more = work(rule, int(site), number, arrays, extra)
            meta = {"fastagg_kind": "delta"}
            meta |= {} if more is None else {"fastagg_extra": {n: a.numpy() for n, a in more.items()}}  # type: ignore[dict-item]
            reply = FLModel(ParamsType.DIFF, update, meta=meta, current_round=model.current_round)
            outcome = traffic.take(site, reply)
            assert isinstance(outcome, fastagg.Receipt), outcome
    assert torch.equal(server.flat, alone.flat)
