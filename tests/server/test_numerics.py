"""Numerical guarantees: fp32 sums for all types, weights that do not overflow, integers, rounds without an order."""

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fastagg
from fastagg.server import engine

pytestmark = pytest.mark.kernel

D = 1000
SYNCHRONOUS = ["FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedAMS"]
HALVES = [torch.float16, torch.bfloat16]


def normals(seed: int, dtype: torch.dtype = torch.float32, size: int = D) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def round_of(server: fastagg.Server, updates: dict[Any, Any], samples: dict[Any, float] | None = None) -> None:
    for client in updates:
        server.dispatch(client)
    for client, update in updates.items():
        server.receive(client, update, num_samples=samples[client] if samples else None)


@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_hundred_clients_sum_in_fp32(name: str, dtype: torch.dtype) -> None:
    setting = {"clients_per_round": 100} if name == "FedAvg" else {"buffer_size": 100}
    server = getattr(fastagg, name)(torch.zeros(D), weighting="uniform", **setting)
    updates = {client: normals(client, dtype) for client in range(100)}
    round_of(server, updates)
    exact = torch.stack(list(updates.values())).double().mean(0)
    ours = (server.flat - exact).norm() / exact.norm()
    running = torch.zeros(D, dtype=dtype)
    for update in updates.values():
        running += update / 100  # what a sum in the wire's own type gives
    theirs = (running - exact).norm() / exact.norm()
    assert ours < 1e-6 < 1e-4 < theirs


@dataclass(frozen=True)
class Heavy(fastagg.Staleness):
    by: float = 1e38
    weighs = True

    def weight(self, delay: int) -> float:
        return self.by


SECOND = [fastagg.Adam, fastagg.AMSGrad, fastagg.Yogi, fastagg.Lookahead]
BEYOND: list[fastagg.Server] = [
    *(fastagg.Server(torch.ones(3), optimizer=kind(3.4e38, bias_correction=True)) for kind in SECOND),
    *(fastagg.Server(torch.ones(3), optimizer=kind(1e25)) for kind in SECOND),  # lr*m, before it is divided
    fastagg.Server(torch.ones(3), fastagg.Buffer(2), staleness=Heavy(), weighting="samples"),
    fastagg.Server(torch.ones(3), fastagg.Buffer(1, normalize=1e-30), staleness=Heavy()),
    fastagg.Server(torch.ones(3), fastagg.CosineBuffer(2), staleness=Heavy(), weighting="samples"),
    # a client that comes twice in a round counts for its last weight, and both of its updates are in the sum
    fastagg.CA2FL(torch.ones(3), lr=1.0, num_clients=1, buffer_size=2, weighting="samples"),
]


@pytest.mark.parametrize("server", BEYOND, ids=repr)
def test_a_factor_beyond_float32_spoils_not_even_an_update_of_zeros(server: fastagg.Server) -> None:
    for number, samples in ((0.0, 1e30), (1e-45, 1e30), (1e17, 1e30), (1.0, 1e30), (1.0, 1e-30), (0.0, 1e-30)):
        server.dispatch(0)
        with contextlib.suppress(fastagg.UpdateTooLarge):
            server.receive(0, torch.tensor([number, -number, 0.0]), num_samples=samples)
        assert engine.finite(server._running)


@pytest.mark.parametrize("heaviest", [1e9, 1e30])
def test_weights_are_a_share_of_the_whole(heaviest: float) -> None:
    """However large the numbers of samples, and a billion times apart: means stay between the updates."""
    server = fastagg.FedAvg(torch.zeros(D), clients_per_round=3)
    round_of(server, {c: torch.full((D,), 100.0) for c in range(3)}, {0: 1.0, 1: heaviest, 2: heaviest})
    assert torch.allclose(server.flat, torch.tensor(100.0), rtol=1e-6)


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 2)))[1:])
@pytest.mark.parametrize("name", SYNCHRONOUS)
def test_a_deterministic_round_has_no_order(name: str, order: tuple[int, ...]) -> None:
    def result(order: tuple[int, ...], **settings: Any) -> Tensor:
        make = getattr(fastagg, name)
        server = make(torch.zeros(D), clients_per_round=3, clip_norm=30.0, weighting="samples", **settings)
        for turn in range(2):
            round_of(server, {c: normals(10 * turn + c) for c in order}, {0: 1.0, 1: 3.7, 2: 0.3})
        return server.flat.clone()

    first = result((0, 1, 2), deterministic=True)
    assert torch.equal(result(order, deterministic=True), first)
    assert torch.equal(result((0, 1, 2)), first)  # it is the plain server, fed in this order


def test_early_updates_are_copied_in_the_type_they_came_in() -> None:
    server = fastagg.FedAvg(torch.zeros(D), clients_per_round=3, weighting="uniform", deterministic=True)
    reused = torch.empty(D, dtype=torch.float16)  # a client driver may receive into the same memory again
    for client in range(3):
        server.dispatch(client)
    held = []
    for client in (2, 1, 0):
        reused.copy_(torch.full((D,), float(client)))
        assert server.receive(client, reused).applied == (client == 0)
        held.append(server.memory()["direction"])
    assert held[0] in (2 * D, 6 * D)  # the sum's memory may be taken ahead
    assert held[1] - held[0] == 2 * D
    assert torch.equal(server.flat, torch.ones(D))


def test_samples_that_make_statistics_infinite_are_refused() -> None:
    params = {"w": torch.zeros(D), "bn.running_mean": torch.zeros(3)}
    server = fastagg.FedAvg(params, clients_per_round=9, buffers="weighted")
    round_of(server, {1: {"w": normals(1), "bn.running_mean": torch.ones(3)}}, {1: 2.0})
    server.dispatch(7)
    with pytest.raises(fastagg.UpdateTooLarge, match=r"buffers: 1e.30 samples"):
        server.receive(7, {"w": torch.zeros(D), "bn.running_mean": torch.full((3,), 1e12)}, num_samples=1e30)
    server.close_round()
    torch.testing.assert_close(server.parameters()["bn.running_mean"], torch.ones(3))
