"""Robust rules in a server: refusals, memory, encoded updates, rounds that end early, folders; the arithmetic is in
tests/ops/test_combine.py, and every way and form of an update in the tests of all presets."""

import pytest
import torch
from support import reference

import fastagg
from fastagg.errors import ConfigError

pytestmark = pytest.mark.kernel

SIZE = 3000


def update(number: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(number))


def answer(server: fastagg.Server, client: int, number: int) -> fastagg.Receipt:
    server.dispatch(client)
    return server.receive(client, update(number))


def test_a_round_has_no_more_updates_than_can_be_combined() -> None:
    server = fastagg.Server(torch.zeros(1), fastagg.Robust("median", None))
    for client in range(1024):
        server.dispatch(client)
        server.receive(client, torch.tensor([float(client)]))
    server.dispatch(2000)
    with pytest.raises(ConfigError, match="as many updates as can be combined; call close_round"):
        server.receive(2000, torch.tensor([1.0]))
    server.close_round()
    assert server.flat.item() == 511.5
    server.receive(2000, torch.tensor([1.0]))


def test_updates_wait_as_they_came_and_count_by_their_staleness() -> None:
    server = fastagg.Server(
        torch.zeros(SIZE), fastagg.Robust("trimmed", 3, trim=0.34), staleness=fastagg.Polynomial(1.0), clip_norm=40.0
    )
    server.dispatch("late")
    for client in range(3):
        answer(server, client, client)
    assert server.version == 1
    before, rows = server.flat.clone(), [update(10), update(11), 2 * update(12)]
    server.receive("late", rows[0].half())
    assert server.memory()["direction"] == 2 * SIZE
    server.dispatch(1)
    server.receive(1, fastagg.encode(rows[1], "int8", seed=1))
    assert server.memory()["direction"] < 3.1 * SIZE
    server.dispatch(2)
    assert server.receive(2, rows[2]).applied
    came = [rows[0].half().float(), fastagg.encode(rows[1], "int8", seed=1).decode(), rows[2]]
    gains = [min(1.0, 40.0 / float(row.double().norm())) for row in came]
    wanted = reference.combine(came, "trimmed", weights=[gains[0] / 2, *gains[1:]], trim=0.34)
    torch.testing.assert_close(server.flat.double() - before, wanted, rtol=1e-5, atol=1e-6)
    assert server.memory()["direction"] == 0
