"""Settings of parts: what stays finite. Values that cannot be: test_errors.py."""

from typing import Any

import pytest
import torch

import fastagg
from fastagg.errors import ConfigError, FastaggError


def test_weights_that_vanish_are_refused() -> None:
    server = fastagg.FedBuff(torch.ones(3), buffer_size=2, staleness=fastagg.Hinge(3e38, 0.0), normalize="weights")
    server.dispatch("slow")
    for client in ("ann", "bob"):
        server.dispatch(client)
        server.receive(client, torch.ones(3))
    before = server.state_dict()
    with pytest.raises(FastaggError, match="normalize: the sum of the updates' weights"):
        server.receive("slow", torch.ones(3))
    assert torch.equal(server.flat, before["flat"]) and server.version == 1


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("optimizer", [fastagg.SGD, fastagg.Momentum, fastagg.AMSGrad, fastagg.Adagrad])
def test_decay_leaves_everything_finite_or_is_refused(optimizer: Any, decoupled: bool) -> None:
    refused = 0
    for decay in (1e-3, 3.0, 1e19, 3e38):
        for lr in (1e-3, 3.0, 1e19, 3e38):
            rule = optimizer(lr, weight_decay=decay, decoupled_weight_decay=decoupled)
            server = fastagg.Server(torch.tensor([0.0, 1e-30, 1.0, -1e9]), optimizer=rule)
            for _ in range(12):
                server.dispatch(0)
                try:
                    server.receive(0, torch.tensor([0.0, 1.0, -1.0, 1e-20]))
                except fastagg.UpdateTooLarge:
                    refused += 1
                    break
                state = server.state_dict()
                assert all(torch.isfinite(t).all() for t in (server.flat, *state["moments"].values()))
    assert 0 < refused < 16


def test_a_mixing_weight_is_at_most_one() -> None:
    made = [fastagg.FedAsync(torch.zeros(3), normalize=9, weighting="samples", alpha=0.5, **more)
            for more in ({}, {"max_samples": 18})]  # fmt: skip
    for server in made:
        task = server.dispatch("ann")
        if server is made[0]:
            with pytest.raises(ConfigError, match=r"normalize: .* 1\.5.*max_samples"):
                server.receive_model(task, torch.ones(3), 27)
            assert server.version == 0 and torch.equal(server.flat, torch.zeros(3))
        assert server.receive_model(task, torch.ones(3), 18 if server is made[0] else 27).applied
        assert torch.equal(server.flat, torch.ones(3))  # the weight is 1: the client's model
