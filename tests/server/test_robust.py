"""Robust rules in a server: refusals, memory, encoded updates, rounds that end early, folders; the arithmetic is in
tests/ops/test_combine.py, and every way and form of an update in the tests of all presets."""

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError

pytestmark = pytest.mark.kernel

SIZE = 3000


def update(number: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(number))


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


def test_updates_wait_as_they_came() -> None:
    """What they count for: tests/fuzz."""
    server = fastagg.Server(torch.zeros(SIZE), fastagg.Robust("trimmed", 3, trim=0.34))
    for client, (sent, most) in enumerate((
        (update(0).half(), 2.0 * SIZE), (fastagg.encode(update(1), "int8", seed=1), 3.1 * SIZE), (update(2), 0.0),
    )):  # fmt: skip
        server.dispatch(client)
        assert server.receive(client, sent).applied == (client == 2)
        assert server.memory()["direction"] <= most
