"""``validate="deferred"`` where there is no GPU to wait for (tests/test_cuda_agreement.py has the rest)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError, NonFiniteUpdate
from fastagg.serving.deferred import DeferredReceipt

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
        (lambda: fastagg.AsyncFedED(X, lam=1.0, eps=1.0, sketch=1024, validate="deferred"), "sketch"),
        (lambda: fastagg.FedAvg(X, clients_per_round=2, deterministic=True, validate="deferred"), "deterministic"),
        (lambda: fastagg.FedBuff(X, validate="later"), "validate: expected one of"),
    ],
)
def test_refusals(make: Callable[[], fastagg.Server], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def test_a_receipt_reads_the_device_once_and_only_when_asked() -> None:
    verdict = torch.tensor([4.0, 0.0, 0.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    receipt = DeferredReceipt("a", 3, 1, 0.1, 2.0, True, verdict)
    assert (receipt.client, receipt.version, receipt.delay) == ("a", 3, 1)
    assert "kept" not in receipt.__dict__
    assert receipt.update_norm == 2.0
    verdict.zero_()
    assert (receipt.kept, receipt.weight, receipt.step_size, receipt.applied) == (True, 1.0, 0.05, True)
    with pytest.raises(AttributeError):
        _ = receipt.unknown


@pytest.mark.parametrize("scales", [True, False])
def test_the_receipt_of_a_dropped_update(scales: bool) -> None:
    """Alone it changes nothing; the last of a full buffer still flushes it."""
    verdict = torch.tensor([float("nan"), 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    receipt = DeferredReceipt(0, 1, 0, 0.1, 1.0, scales, verdict)
    assert not receipt.kept and receipt.applied is not scales


def test_it_survives_a_checkpoint(tmp_path: object) -> None:
    path = f"{tmp_path}/server.pt"
    fastagg.FADAS(X, validate="deferred").save(path)
    assert fastagg.load(path).validate == "deferred"
