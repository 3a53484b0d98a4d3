"""Settings of the parts that came later: what was written without them, what is refused, and what stays finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastagg
from fastagg import registry
from fastagg.errors import ConfigError, FastaggError

# As a checkpoint from before described parts.
BEFORE: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1.0},
    "Momentum": {"lr": 1.0, "beta": 0.9, "moments": "fp32"},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "bias_correction": False, "moments": "fp32"},
    "Lookahead": {"lr": 1e-3, "betas": (0.6, 0.9), "eps": 1e-8, "bias_correction": False, "moments": "fp32"},
    "Adagrad": {"lr": 1e-2, "beta": 0.0, "eps": 1e-8, "moments": "fp32"},
    "Buffer": {"size": 10},
    "Mixing": {},
}
LATER = {
    "SGD": {"weight_decay": 0.1, "decoupled_weight_decay": True},
    "Momentum": {"weight_decay": 0.1},
    "Adam": {"eps_root": 0.1, "initial": 0.2, "eps": 0.0},
    "Lookahead": {"initial": 0.2},
    "Adagrad": {"eps_root": 0.1, "weight_decay": 0.1},
    "Buffer": {"normalize": "weights"},
    "Mixing": {"normalize": 5.0},
}


@pytest.mark.parametrize("name", BEFORE)
def test_parts_are_described_as_before_unless_a_later_setting_is_set(name: str) -> None:
    kind = "direction" if name in ("Buffer", "Mixing") else "optimizer"
    before = {"name": name, **({"kind": "delta"} if kind == "direction" else {}), **BEFORE[name]}
    default = getattr(fastagg, name)()
    assert registry.describe(default) == before
    assert registry.part(kind, before) == default
    changed = getattr(fastagg, name)(**LATER[name])
    assert registry.part(kind, registry.describe(changed)) == changed != default


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fastagg.SGD(weight_decay=-1.0), "weight_decay"),
        (lambda: fastagg.Adam(eps=0.0), "eps"),
        (lambda: fastagg.Adam(eps=0.0, eps_root=1e-30), "eps"),
        (lambda: fastagg.Yogi(eps_root=-1.0), "eps_root"),
        (lambda: fastagg.Adagrad(initial=-1.0), "initial"),
        (lambda: fastagg.Buffer(normalize="samples"), "normalize"),
        (lambda: fastagg.Buffer(normalize=0), "normalize"),
        (lambda: fastagg.Buffer(normalize="weights", exact=1.0), "normalize.*exact"),
        (lambda: fastagg.CosineBuffer(normalize="weights"), "normalize"),
        (lambda: fastagg.FedAsync(torch.zeros(3), normalize=-1.0), "normalize"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


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


def test_presets_say_how_updates_count() -> None:
    for name, preset in registry.presets().items():
        if name not in ("ASGD", "DelayAdaptiveASGD", "AsyncFedED", "FedProx"):
            assert "``uniform``" in str(preset.__doc__) or "``samples``" in str(preset.__doc__), name


@pytest.mark.parametrize("tau", [0, 1, 2, 5])
def test_aced_is_algorithm_a1_for_who_sends_as_it_does(tau: int) -> None:
    """Against the listing itself: w^1 goes to all after the first step, then w^(t+1) to the client that answered."""
    n, eta, size = 4, 0.1, 5
    rng = torch.Generator().manual_seed(tau)
    gradients = iter(torch.randn(n + 60, size, generator=rng))
    order = [int(i) for i in torch.randint(0, n, (60,), generator=rng)]
    server = fastagg.ACED(torch.zeros(size), lr=eta, num_clients=n, max_delay=tau)
    tasks = [server.dispatch(client) for client in range(n)]
    cache = [next(gradients).double() for _ in range(n)]
    for client, row in enumerate(cache):
        server.receive(client, row.float(), task=tasks[client].id)
    w, start = -eta * torch.stack(cache).mean(0), [1] * n
    tasks = [server.dispatch(client) for client in range(n)]
    for t, j in enumerate(order, 1):
        cache[j] = next(gradients).double()
        server.receive(j, cache[j].float(), task=tasks[j].id)
        active = [cache[i] for i in range(n) if t - start[i] <= tau]
        w = w - eta * torch.stack(active).mean(0) if active else w
        start[j] = t + 1
        tasks[j] = server.dispatch(j)
        torch.testing.assert_close(server.flat.double(), w, rtol=0, atol=1e-5)


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
