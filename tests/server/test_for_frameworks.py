"""What a server offers to frameworks that move models their own way: snapshots, relays, differences of all arrays."""

from __future__ import annotations

import pytest
import torch
from support.models import Residual, same

import fastagg

D = 300


@pytest.mark.parametrize("name", ["FADAS", "FedAsync", "AsyncFedED"])
def test_a_relay_hands_its_task_on(name: str) -> None:
    def make() -> fastagg.Server:
        settings = {"FADAS": {"buffer_size": 2}, "FedAsync": {}, "AsyncFedED": {"lam": 1.0, "eps": 1.0}}[name]
        return getattr(fastagg, name)(torch.linspace(-1, 1, D), **settings)

    direct, relayed = make(), make()
    for client in ("relay", "a", "b", "c"):
        direct.dispatch(client)
    task = relayed.dispatch("relay")
    relayed.hand_on(task, "a")
    for server in (direct, relayed):
        server.receive("a", torch.full((D,), 0.1))
    for client in ("b", "c"):  # of a version that the server has left behind
        handed = relayed.hand_on(task, client)
        assert (handed.client, handed.version) == (client, 0) and handed.flat is task.flat
    for client in ("b", "c"):
        for server in (direct, relayed):
            server.receive(client, torch.full((D,), 0.2))
    assert torch.equal(direct.flat, relayed.flat) and same(direct.state_dict(), relayed.state_dict())
    with pytest.raises(fastagg.UnknownVersion):  # each of them answers once
        relayed.receive("b", torch.zeros(D))
    relayed.forget("relay")
    with pytest.raises(fastagg.UnknownClient, match="'relay' is not known any more: its last task"):
        relayed.hand_on(task, "d")
    assert relayed.memory()["versions"] == 4 * D  # of tasks that this program holds
    del task, handed
    assert relayed.memory()["versions"] == 0


def test_differences_of_every_array() -> None:
    """As FLARE's DIFF: BatchNorm's statistics and counters come as differences too."""
    start, trained = Residual(), Residual()
    with torch.no_grad():
        for value in trained.state_dict().values():
            value.add_(2)
    task = fastagg.FedBuff(start).dispatch(0)
    difference = {name: value - start.state_dict()[name] for name, value in trained.state_dict().items()}
    restored, delta = task.from_difference(difference), task.delta(trained)
    assert all(torch.equal(restored[name], delta[name]) for name in delta)
    assert [restored[name].dtype for name in delta] == [delta[name].dtype for name in delta]
    parameters = {name: value for name, value in difference.items() if "running" not in name and "num" not in name}
    assert same(task.from_difference(parameters), parameters)
    for wrong, error in (
        ({**difference, "more": torch.zeros(1)}, fastagg.ShapeMismatch),
        ({**difference, "stem.1.running_mean": torch.zeros(9)}, fastagg.ShapeMismatch),
    ):
        with pytest.raises(error):
            task.from_difference(wrong)
    flat = torch.zeros(D)
    assert fastagg.FedBuff(flat).dispatch(0).from_difference(flat) is flat
