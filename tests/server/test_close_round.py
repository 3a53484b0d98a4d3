"""A synchronous round that ends before everybody has answered."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import fastagg

RULES = {
    "FedAvg": fastagg.FedAvg,
    "FedAdam": partial(fastagg.FedAdam, lr=0.1, clip_norm=0.7),
    "FedAMS": partial(fastagg.FedAMS, lr=0.1, weighting="samples"),
}


def model() -> dict[str, torch.Tensor]:
    return {
        "w": torch.linspace(-1, 1, 2000),
        "bn.running_mean": torch.zeros(3),
        "bn.num_batches_tracked": torch.tensor(1),
    }


def send(server: fastagg.Server, client: int) -> None:
    update = {
        "w": torch.randn(2000, generator=torch.Generator().manual_seed(client)) / 30,
        "bn.running_mean": torch.full((3,), float(client)),
        "bn.num_batches_tracked": torch.tensor(client),
    }
    server.receive(client, update, num_samples=client)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("came", [1, 2, 5])
def test_it_is_the_round_of_those_who_came(name: str, came: int) -> None:
    open_, exact = RULES[name](model(), clients_per_round=9), RULES[name](model(), clients_per_round=came)
    for server in (open_, exact):
        for _ in range(2):
            for client in range(1, 10 if server is open_ else came + 1):
                server.dispatch(client)
            for client in range(1, came + 1):
                send(server, client)
            if server is open_:
                assert server.close_round() == server.optimizer.lr
    assert open_.version == exact.version == 2
    for a, b in zip(open_.parameters().values(), exact.parameters().values(), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(open_.parameters()["bn.running_mean"], torch.full((3,), (1 + came) / 2))


def test_there_may_be_nothing_to_close() -> None:
    server = fastagg.FedAvg(model(), clients_per_round=2)
    assert server.close_round() is None and server.version == 0
    for client in (1, 2):
        server.dispatch(client)
        send(server, client)
    assert server.version == 1 and server.close_round() is None and server.version == 1
    immediate = fastagg.FedAsync(model())
    assert immediate.close_round() is None and immediate.version == 0, "not a rule with rounds"


def test_a_late_answer_is_refused() -> None:
    server = fastagg.FedAvg(model(), clients_per_round=3)
    for client in (1, 2, 3):
        server.dispatch(client)
    send(server, 1)
    server.close_round()
    with pytest.raises(fastagg.UnknownVersion, match="from round 0, this is round 1"):
        send(server, 2)
    assert server.version == 1


def test_running_statistics_are_weighted_by_samples_if_told_so() -> None:
    server = fastagg.FedAvg(model(), clients_per_round=9, buffers="weighted")
    for client in (1, 2, 5):
        server.dispatch(client)
        send(server, client)
    saved = server.state_dict()
    server.close_round()
    torch.testing.assert_close(server.parameters()["bn.running_mean"], torch.full((3,), (1 + 4 + 25) / 8))
    server.load_state_dict(saved)
    server.dispatch(7)
    with pytest.raises(fastagg.UpdateTooLarge, match=r"buffers: 1e.30 samples"):
        update = {**model(), "w": torch.zeros(2000), "bn.running_mean": torch.full((3,), 1e12)}
        server.receive(7, update, num_samples=1e30)
    server.close_round()
    torch.testing.assert_close(server.parameters()["bn.running_mean"], torch.full((3,), (1 + 4 + 25) / 8))
