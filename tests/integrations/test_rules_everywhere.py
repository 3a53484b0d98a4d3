"""A rule of the user's own (Median of docs/rules.md) in every strategy of every framework: a poisoner moves nothing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from own_median import Median, median

import fastagg

RULE = "own_median:median"
# What clients add to the model: the mean is no good. The median of the first three is 1, of the others 0.25.
VALUES = (0.5, 100.0, 1.0, 0.25, -50.0, 0.75)
POISON = VALUES[:3]
START = {"w": torch.linspace(-1, 1, 12).view(3, 4), "b": torch.zeros(5)}


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def moved(model: dict[str, Any], value: float) -> dict[str, Any]:
    return {name: array + value for name, array in model.items()}


def is_moved_by(found: dict[str, Any], value: float) -> None:
    assert found.keys() == START.keys()
    for name, array in START.items():
        torch.testing.assert_close(torch.as_tensor(found[name]), array + value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clients", [3, 6])
@pytest.mark.parametrize("kind", ["SyncStrategy", "AsyncStrategy"])
def test_flower(kind: str, clients: int) -> None:
    needs("flwr")
    from support.flower_apps import FakeGrid, trained

    from fastagg.integrations import flower

    in_rounds = kind == "SyncStrategy"
    settings = {"poll": 0, "fraction_evaluate": 0.0} if in_rounds else {"poll": 0, "retry_after": 0}
    strategy = getattr(flower, kind)(median, **settings)
    grid = FakeGrid(lambda message: trained(message, VALUES[message.metadata.dst_node_id - 1]), range(1, clients + 1))
    rounds = 2 if in_rounds else 2 * clients // 3
    result = strategy.start(grid, flower.write(START), num_rounds=rounds)
    steps = 2 * clients // 3
    answers = [VALUES[node - 1] for node, _ in grid.log]  # Flower draws the order of a round's nodes
    is_moved_by(flower.read(result.arrays), sum(sorted(answers[3 * i : 3 * i + 3])[1] for i in range(steps)))
    assert strategy.server.version == steps and isinstance(strategy.server.direction, Median)


def test_flowers_earlier_api() -> None:
    needs("flwr")
    import numpy as np
    from test_flower_classic import NODES, Grid, ours, run

    class Poisoned(Grid):
        def answer(self, message: Any) -> Any:
            back = super().answer(message)
            if message.metadata.dst_node_id == NODES[1]:
                for record in back.array_records.values():
                    for name, array in list(record.items()):
                        record[name] = type(array)(array.numpy() + np.float32(100))
            return back

    strategy = ours(median)
    grid, found = run(strategy, grid=Poisoned())
    for number in range(4):  # the model of each round is the last one, and the median of what they sent
        sent = [grid.received[node][number] for node in NODES]
        assert all(np.array_equal(a, b) for other in sent for a, b in zip(sent[0], other, strict=True))
    assert strategy.server.version == 4 and max(abs(array).max() for array in found) < 3.0


@pytest.mark.parametrize("clients", [3, 6])
def test_flare_in_rounds(clients: int) -> None:
    """With six clients the rule makes two steps in a round. All of them started from the round's model."""
    needs("nvflare")
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fastagg.integrations.nvflare import Aggregator

    aggregator, params = Aggregator(RULE, {"size": 3}), dict(START)
    names = [f"site-{number}" for number in range(clients)]
    for number in range(2):
        for i, name in enumerate(names):
            aggregator.sent(name, FLModel(ParamsType.FULL, params, current_round=number))
            if i == 4:  # four have answered before the last one asks
                for early, value in zip(names[:4], VALUES, strict=False):
                    aggregator.accept_model(answer(early, moved(params, value), number))
        for name, value in list(zip(names, VALUES, strict=False))[4 if clients > 4 else 0 :]:
            aggregator.accept_model(answer(name, moved(params, value), number))
        params = aggregator.aggregate_model().params
    is_moved_by(params, 2.0 if clients == 3 else 2 * (1.0 + 0.25))


def answer(client: str, params: dict[str, Any], number: int) -> Any:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    return FLModel(ParamsType.FULL, params, current_round=number, meta={"client_name": client})


def test_flare_asynchronously() -> None:
    needs("nvflare")
    from fastagg.integrations.nvflare import AsyncController

    traffic = AsyncController(RULE, {"size": 3}, versions=2)._traffic
    traffic.start(START)
    while not traffic.is_over("abc"):
        tasks = {client: traffic.send(client) for client in "abc"}
        for (client, task), value in zip(tasks.items(), POISON, strict=True):
            traffic.take(client, answer(client, moved(task.params, value), task.current_round))
    is_moved_by(traffic.model(), 2.0)


@pytest.mark.parametrize("clients", [3, 6])
def test_appfl_in_rounds(clients: int) -> None:
    needs("appfl")
    from fastagg.integrations.appfl import SyncAggregator

    aggregator = SyncAggregator(aggregator_configs={"algorithm": RULE, "settings": {"size": 3}})
    aggregator._start(START)
    for _ in range(2):
        model = aggregator.get_parameters()
        model = aggregator.aggregate({f"c{i}": moved(model, value) for i, value in enumerate(VALUES[:clients])})
    is_moved_by(model, 2.0 if clients == 3 else 2 * (1.0 + 0.25))


def test_appfl_asynchronously() -> None:
    needs("appfl")
    from fastagg.integrations.appfl import Aggregator

    aggregator = Aggregator(aggregator_configs={"algorithm": RULE, "settings": {"size": 3}, "num_clients": 3})
    aggregator._start(START)
    sent = dict.fromkeys("abc", aggregator.get_parameters())
    for _ in range(2):
        for client, value in zip("abc", POISON, strict=True):
            sent[client] = aggregator.aggregate(client, moved(sent[client], value))
        sent = dict.fromkeys("abc", sent["c"])
        for client in "ab":  # they continue from the newest, too
            assert aggregator.get_parameters(client_id=client).keys() == START.keys()
    is_moved_by(sent["a"], 2.0)


def test_pfl() -> None:
    needs("pfl")
    from fastagg.integrations.pfl import CentralOptimizer

    net = torch.nn.Linear(2, 2)
    optimizer = CentralOptimizer(net, fastagg.SGD(1.0), Median(3, kind="gradient"))
    before = net.weight.detach().clone()
    for value in POISON:
        assert torch.equal(net.weight, before)
        net.weight.grad = torch.full((2, 2), value)
        optimizer.step()
    assert torch.equal(net.weight, before - 1.0) and optimizer.server.version == 1
    with pytest.raises(fastagg.ConfigError, match='direction: expected kind="gradient"'):
        CentralOptimizer(net, fastagg.SGD(1.0), Median(3))
