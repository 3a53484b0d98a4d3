"""``validate="deferred"`` where there is no GPU to wait for (receipts: tests/server/test_dispatch.py; the rest:
tests/csrc/test_cuda_agreement.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError, NonFiniteUpdate

X = torch.zeros(5)


def test_on_the_cpu_the_answer_is_at_hand() -> None:
    server = fastagg.FedBuff(X, buffer_size=1, validate="deferred")
    server.dispatch(0)
    with pytest.raises(NonFiniteUpdate):
        server.receive(0, torch.full((5,), float("nan")))
    assert server.version == 0 and server.receive(0, torch.ones(5)).kept


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: fastagg.FedAC(X, lr=0.1, validate="deferred"), "direction"),
        (lambda: fastagg.FedAvg(X, clients_per_round=2, deterministic=True, validate="deferred"), "deterministic"),
        (lambda: fastagg.FedBuff(X, validate="later"), "validate: expected one of"),
    ],
)
def test_refusals(make: Callable[[], fastagg.Server], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def test_it_survives_a_checkpoint(tmp_path: object) -> None:
    path = f"{tmp_path}/server.pt"
    fastagg.FADAS(X, validate="deferred").save(path)
    assert fastagg.load(path).validate == "deferred"
