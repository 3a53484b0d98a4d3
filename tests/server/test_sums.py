"""Sums that a server makes of rows and of models, where the kernels have no function of their own in `fastagg.ops`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from support import inside
from support.kernels import SIZES, same_bits, vector
from support.models import same
from torch import Tensor

import fastagg
from fastagg.errors import NonFiniteUpdate
from fastagg.storage.cache import FORMATS

pytestmark = pytest.mark.kernel

N = 11


def rows_of(server: fastagg.Server) -> Tensor:
    """Each client's row times its weight, as the kernels have it: the product in float32. [n, d] float64."""
    found = [np.float32(w) * inside.row(server, i).numpy() for i, w in enumerate(inside.weights(server))]
    return torch.from_numpy(np.stack(found)).double()


def sum_of(server: fastagg.Server) -> Tensor:
    found: Tensor = server.state_dict()["direction"]["sum"]
    return found


def answer(server: fastagg.Server, number: int) -> None:
    client, scale = number * 7 % N, 10.0 ** (number % 5 - 2)
    server.dispatch(client)
    server.receive(client, vector(server.flat.numel(), number, scale), num_samples=1 + number % 3)


@pytest.mark.parametrize("format", FORMATS)
def test_a_direct_sum_is_added_in_float64_and_rounded_once(format: str, isa: str) -> None:
    for size in (1, 127, 1024, 1300, 4 * 1024 + 700):
        server = fastagg.ACE(
            torch.zeros(size), lr=0.1, num_clients=N, cache=format, mode="direct", warmup="partial", weighting="samples"
        )
        for number in range(N + 3):
            answer(server, number)
        total = torch.zeros(size, dtype=torch.float64)
        for row in rows_of(server):  # in the clients' order
            total += row
        assert same_bits(sum_of(server), total.float())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rule", ["ACE", "ACED"])
def test_a_sum_that_went_astray_is_made_anew_block_by_block(format: str, rule: str, isa: str) -> None:
    """Every block has its turn within 4 arrivals a client, and one more for each 16 clients, while rows change."""
    size, given = 4 * 1024 + 700, {"lr": 0.1, "num_clients": N, "cache": format, "warmup": "partial"}
    server = fastagg.ACE(torch.zeros(size), **given) if rule == "ACE" else fastagg.ACED(torch.zeros(size), **given)
    for number in range(2 * N):
        answer(server, number)
    state = server.state_dict()
    state["direction"]["sum"] += 1.0
    server.load_state_dict(state)
    for number in range(2 * N, 7 * N):
        answer(server, number)
    rows = rows_of(server)
    allowed = 4 * N * 2.0**-23 * rows.abs().amax(0).clamp_min(100.0)  # of what was added since the turn
    assert ((sum_of(server).double() - rows.sum(0)).abs() <= allowed).all()


def test_sums_over_clients_depend_on_no_number_of_threads(threads: None) -> None:
    found = []
    for count in (1, 2, 5):
        fastagg.set_num_threads(count)
        server = fastagg.ACE(torch.zeros(64 * 1024), lr=0.1, num_clients=N, cache="int4", warmup="partial")
        for number in range(5 * N):
            answer(server, number)
        found.append({key: value for key, value in server.state_dict().items() if key in ("flat", "direction")})
    assert same(found[0], found[1]) and same(found[0], found[2])


@pytest.mark.parametrize("count", [1, 2, 3, 6])
@pytest.mark.parametrize("begun", [False, True])
def test_models_are_added_one_difference_after_the_other(count: int, begun: bool, isa: str) -> None:
    """To a sum or to none; of two versions, in any type; product and sum in float32."""
    for size in (*SIZES[1:], (1 << 20) + 9):  # that long, sums are written past the caches
        server = fastagg.FedBuff(vector(size, 90), buffer_size=count + begun)
        early = (count + 1) // 3  # of six, four are of one version: as many as one loop adds
        tasks = [server.dispatch(f"early {k}") for k in range(early)]
        for client in range(count + begun):  # another version
            server.receive(server.dispatch(client).client, vector(size, 91, 1e-2))
        tasks += [server.dispatch(f"late {k}") for k in range(count - early)]
        total = np.zeros(size, np.float32)
        if begun:
            total = vector(size, 80).numpy()
            server.receive(server.dispatch("first").client, vector(size, 80))
        wires = itertools.cycle((torch.float32, torch.float16, torch.bfloat16))
        x, models = server.flat.numpy().copy(), [vector(size, k).to(next(wires)) for k in range(count)]
        for task, model in zip(tasks, models, strict=True):
            total = total + (model.float().numpy() - task.flat.numpy())
        outcomes = server.receive_models([(task, model, None) for task, model in zip(tasks, models, strict=True)])
        assert [one.version for one in outcomes] == [1] * (count - 1) + [2]
        assert same_bits(server.flat, torch.from_numpy(x + total * np.float32(1.0 / (count + begun)))), f"size {size}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.finfo(torch.float32).max])
def test_a_model_that_is_not_finite_is_found_wherever(bad: float, isa: str) -> None:
    """Also one that is an infinite way from its version."""
    low = -bad if bad == torch.finfo(torch.float32).max else -1.0
    for size in (1, 1025, 70_001, (1 << 20) + 9):
        for position in {0, size // 2, size - 1}:
            server = fastagg.FedBuff(torch.full((size,), low), buffer_size=9)
            models = [torch.full((size,), low) for _ in range(3)]
            models[1][position] = bad
            found = server.receive_models([(server.dispatch(k), model, None) for k, model in enumerate(models)])
            assert [isinstance(one, NonFiniteUpdate) for one in found] == [False, True, False]
            before = server.flat.clone()
            if low == -1.0:  # a step from the largest numbers is refused
                server.close_round()  # along the two that moved nothing
                assert server.version == 1 and torch.equal(server.flat, before)
