"""A client without samples contributes nothing and is no failure; test_forms.py has the other ways of an answer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import same
from support.presets import PRESETS, SYNCHRONOUS, calls, model, update

import fastagg
from fastagg.errors import ConfigError

pytestmark = pytest.mark.kernel

D = 300


def summed(server: fastagg.Server, task: fastagg.Dispatch, delta: torch.Tensor) -> fastagg.Receipt:
    leaf = fastagg.Leaf(delta, weighting=server.weighting)
    leaf.fold(delta, 0)
    return server.receive_partial(task.client, leaf.take(), task=task.id)


Way = Callable[[fastagg.Server, fastagg.Dispatch, torch.Tensor], fastagg.Receipt]
WAYS: dict[str, Way] = {  # the others have the bits of receive: see test_forms.py
    "receive": lambda s, t, u: s.receive(t.client, u.numpy(), num_samples=torch.tensor(0), task=t.id),
    "partial": summed,
}


def plain(server: fastagg.Server) -> Any:
    """The state, but for versions and tasks."""
    state = server.state_dict()
    return {name: state[name] for name in ("steps", "flat", "moments", "buffers", "direction")}


@pytest.mark.parametrize("name", PRESETS)
def test_uniform_weights_do_not_look_at_samples(name: str) -> None:
    servers = PRESETS[name](model(D)), PRESETS[name](model(D))
    if servers[0].weighting != "uniform":
        return
    for call in calls(name, 12):
        for server, samples in zip(servers, (0, 5), strict=True):
            if call.number is None:
                server.dispatch(call.client)
            else:
                server.receive(call.client, update(call.number, D), num_samples=samples)
    assert same(*(plain(server) for server in servers)) and servers[0].version > 0


@pytest.mark.parametrize("settings", [{}, {"buffers": "weighted"}, {"clip_norm": 0.5}], ids=str)
@pytest.mark.parametrize("name", PRESETS)
def test_zeros_keep_the_model(name: str, settings: dict[str, Any]) -> None:
    try:
        server = PRESETS[name](model(D), **{"weighting": "samples", **settings})
    except (ConfigError, TypeError):
        return
    for call in calls(name, 6):  # so that there is something to lose
        if call.number is None:
            server.dispatch(call.client)
        else:
            server.receive(call.client, update(call.number, D), num_samples=2)
    before, version = plain(server), server.version
    if before["direction"].get("versions"):
        server.close_round()
        before, version = plain(server), server.version
    for client in range(3):
        task = server.dispatch(client)
        held = plain(server)["direction"]
        receipt = server.receive(client, update(client + 50, D), num_samples=0)
        assert not receipt.applied and receipt.step_size is None and receipt.task == task.id
        assert server.direction.buffered or same(plain(server)["direction"], held)
    if name.startswith(SYNCHRONOUS):
        assert server.version == version + 1  # the round is over
    if server.direction.buffered:
        assert server.close_round() is None
    assert same(plain(server)["flat"], before["flat"]) and same(plain(server)["moments"], before["moments"])
    server.dispatch(0)
    server.receive(0, update(90, D), num_samples=1)  # and it goes on


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_the_others_are_the_mean(way: str, deterministic: bool, tmp_path: Path) -> None:
    """With and without a folder, which tells the same after a restart."""
    if deterministic and way == "partial":
        return
    sized = torch.linspace(-1, 1, D)
    make = partial(fastagg.FedAvg, sized, clients_per_round=3, weighting="samples", deterministic=deterministic, seed=1)
    alone = fastagg.FedAvg(sized, clients_per_round=2, weighting="samples", deterministic=deterministic, seed=1)
    for client in (1, 2):
        alone.dispatch(client)
    for client in (1, 2):
        alone.receive(client, update(client, D), num_samples=client)
    for turn in range(3):
        for server in (make(), fastagg.open(tmp_path / str(turn), make)):
            tasks = [server.dispatch(client) for client in range(4)]
            order = [1, 2]
            order.insert(turn, 0)
            for client in order:
                if client:
                    server.receive(client, update(client, D), num_samples=client)
                else:
                    WAYS[way](server, tasks[0], update(7, D))
            assert server.version == 1 and torch.equal(server.flat, alone.flat)
        with server, pytest.raises(fastagg.UnknownVersion):  # its round is over
            WAYS[way](server, tasks[3], update(8, D))
        with fastagg.open(tmp_path / str(turn), make) as again:
            assert again.version == 1 and torch.equal(again.flat, alone.flat)


def test_their_statistics_do_not_count() -> None:
    for buffers in ("mean", "weighted", "latest"):
        params = {"w": torch.zeros(2), "bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(3)}
        server = fastagg.FedAvg(params, clients_per_round=2, weighting="samples", buffers=buffers)
        for client, samples in ((0, 4), (1, 0)):
            server.dispatch(client)
            mine = {"w": torch.ones(2), "bn.running_mean": torch.full((2,), 9.0 * (client + 1))}
            server.receive(client, {**mine, "bn.num_batches_tracked": torch.tensor(5 + client)}, num_samples=samples)
        now = server.parameters()
        assert now["bn.running_mean"].tolist() == [9.0, 9.0] and int(now["bn.num_batches_tracked"]) == 5
