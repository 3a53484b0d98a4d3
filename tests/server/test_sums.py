"""Sums that a server makes of rows and of models, where the kernels have no function of their own in `fastagg.ops`."""

import numpy as np
import pytest
import torch
from support import inside
from support.kernels import same_bits, vector
from support.models import same
from torch import Tensor

import fastagg
from fastagg.server.loading import server_from
from fastagg.storage.cache import FORMATS

pytestmark = pytest.mark.kernel

N = 11


def rows_of(server: fastagg.Server) -> Tensor:
    """Each client's row times its weight, as the kernels have it: the product in float32. [n, d] float64."""
    direction = inside.direction(server)
    state = direction.native.state()
    weights = enumerate(state["weights"]) if "weights" in state else ((slot, 1.0) for _, slot in state["slots"])
    rows = [np.float32(weight) * inside.row_in(direction.cache, slot).numpy() for slot, weight in weights]
    return torch.from_numpy(np.stack(rows)).double()


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


def made(rule: str, format: str) -> fastagg.Server:
    more = {"buffer_size": 3} if rule == "CA2FL" else {"warmup": "partial"}
    return getattr(fastagg, rule)(torch.zeros(4 * 1024 + 700), lr=0.1, num_clients=N, cache=format, **more)


@pytest.mark.parametrize("rule", ["ACE", "ACED", "CA2FL"])
def test_a_checkpoint_in_the_middle_of_a_turn_changes_no_bit(rule: str) -> None:
    server, whole = made(rule, "int8"), made(rule, "int8")
    for number in range(8 * N):
        if number % 5 == 0:
            server = server_from(server.state_dict())
        answer(server, number)
        answer(whole, number)
        assert same(server.state_dict(), whole.state_dict())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rule", ["ACE", "ACED", "CA2FL"])
def test_a_sum_that_went_astray_is_made_anew_block_by_block(format: str, rule: str, isa: str) -> None:
    """Every block has its turn within 4 arrivals a client, and one more for each 16 clients, while rows change."""
    server = made(rule, format)
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


@pytest.mark.parametrize("rounds", range(686, 692))
def test_an_old_version_that_is_handed_on_leaves_the_sum_as_after_a_restart(rounds: int) -> None:
    """ACED keeps a list of the clients of each version, and makes it anew when it is long."""

    def steps(restarts: bool) -> torch.Tensor:
        server = fastagg.ACED(torch.zeros(4), lr=0.1, num_clients=3, max_delay=3, warmup="partial")
        old, _, models = server.dispatch(2), server.dispatch(1), []
        for turn in range(rounds):
            server.dispatch(turn % 2), server.receive(turn % 2, torch.full((4,), 1.0 + turn % 2))
            server.dispatch(0)
        server.hand_on(old, 1)
        if restarts:
            server.load_state_dict(server.state_dict())
        for _ in range(8):
            server.dispatch(0), server.receive(0, torch.ones(4))
            models.append(server.flat.clone())
        return torch.stack(models)

    assert torch.equal(steps(False), steps(True))
