"""A crowd in the ledger, exact sums and the scrub, each against a model that does it the slow way. Tasks and the active
set: tests/fuzz."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import inside
from support.models import same
from support.presets import update
from support.properties import examples

import fastagg
from fastagg.errors import UnknownVersion

pytestmark = pytest.mark.kernel

D = 5


def test_an_answer_after_a_task_was_given_up_is_what_is_remembered() -> None:
    server = fastagg.ASGD(torch.zeros(D), lr=1.0)
    server.dispatch("a")
    server.forget("a", 0)
    server.dispatch("a")  # of version 0, too
    server.receive("a", torch.ones(D))
    with pytest.raises(UnknownVersion, match="answered everything"):
        server.receive("a", torch.ones(D))


@pytest.mark.parametrize("expires", [False, True])
def test_a_crowd_that_comes_and_goes(expires: bool) -> None:
    """Of many clients, most of which are forgotten again: what is kept of the others stays."""
    draw, server = random.Random(expires), fastagg.ASGD(torch.zeros(1), lr=1.0, lease=1000.0 if expires else None)
    owed: dict[Any, set[int]] = {}
    last: dict[Any, int] = {}

    def agree() -> None:
        ledger = inside.engine(server)
        state = ledger.tasks()
        assert ledger.known == len(last)
        assert dict(zip(state["clients"], state["last_sent"].tolist(), strict=True)) == last
        assert all(sorted(ledger.owed(client)) == sorted(versions) for client, versions in owed.items())

    for _ in range(3):
        for _ in range(10_000):  # numbers in a row, far apart and negative, and names
            number = draw.randrange(5000)
            client = f"client {number}" if number % 4 == 0 else (number << 8 * (number % 7)) - 3 * (number % 2)
            last[client] = server.dispatch(client).version
            owed.setdefault(client, set()).add(last[client])
            if draw.random() < 0.6:
                server.forget(client, last[client])
                owed[client].remove(last[client])
            elif draw.random() < 0.003:
                server.receive(client, torch.ones(1))
                owed[client].remove(last[client])
        agree()
        for client in [client for client in last if draw.random() < 0.95]:
            server.forget(client)
            del owed[client], last[client]
        agree()
    if expires:
        inside.pass_time(server, 2000.0)
        server.expire()
    for client in [] if expires else last:
        server.forget(client)
    assert inside.known(server) == 0 and not inside.engine(server).tasks()["clients"]


# -- exact sums --------------------------------------------------------------------------------------------------

WEIGHTS = st.one_of(
    st.floats(1e-30, 1e30), st.floats(-99, 99).map(lambda e: float(np.float32(2.0**e))), st.just(1.0)
)  # what counts is the nearest fp32


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 3), WEIGHTS, st.integers(0, 9)), min_size=1, max_size=30),
    cut=st.integers(0, 30),
)
@examples(80)
def test_the_mean_by_weights_of_every_size(arrivals: list[tuple[int, float, int]], cut: int) -> None:
    """Rows with weights between 1e-30 and 1e30 come and go. What was added and removed leaves no error."""
    server = fastagg.ACE(torch.zeros(D), lr=1.0, num_clients=4, mode="direct", warmup="partial", weighting="samples")
    rows: dict[int, tuple[Fraction, np.ndarray[Any, Any]]] = {}
    for number, (client, weight, seed) in enumerate(arrivals):
        if number == cut:
            server = fastagg.server.loading.server_from(server.state_dict())
        given_ = update(seed, D).float()
        before = server.flat.double().numpy().copy()
        server.dispatch(client)
        server.receive(client, given_, num_samples=weight)
        rows[client] = (Fraction(float(np.float32(weight))), given_.double().numpy())
        total = sum((w for w, _ in rows.values()), Fraction(0))
        shares = [float(w / total) for w, _ in rows.values()]
        mean = sum(share * row for share, (_, row) in zip(shares, rows.values(), strict=True))
        size = max(float(np.abs(row).max()) for _, row in rows.values())
        after = server.flat.double().numpy()
        np.testing.assert_allclose(after - before, -mean, rtol=0, atol=4e-7 * (size + float(np.abs(after).max())))


# -- the scrub ---------------------------------------------------------------------------------------------------

SCRUBBED = {
    "ACE": lambda x, **k: fastagg.ACE(x, lr=0.1, num_clients=20, warmup="partial", **k),
    "ACE, by samples, int8": lambda x, **k: fastagg.ACE(
        x, lr=0.1, num_clients=20, warmup="partial", weighting="samples", cache="int8", **k
    ),
    "ACED": lambda x, **k: fastagg.ACED(x, lr=0.1, num_clients=20, warmup="partial", max_delay=7, **k),
    "CA2FL": lambda x, **k: fastagg.CA2FL(x, num_clients=20, buffer_size=3, **k),
}


def arrive(server: fastagg.Server, first: int, last: int, begin: int, end: int) -> None:
    draw = np.random.default_rng(first)
    for number in range(first, last):
        client = int(draw.integers(0, 20))
        server.dispatch(client)
        server.receive(client, update(number % 50, 70_000)[begin:end], num_samples=1.0 + number % 3)


def distance_from_its_rows(server: fastagg.Server) -> float:
    """The largest difference between the sum that is kept and the rows added up in float64."""
    state, held = inside.direction(server), inside.direction(server).native.state()
    cache = state.cache
    if "weights" in held:
        weights = {slot: float(w) for slot, w in enumerate(held["weights"]) if w}
    else:
        weights = {slot: 1.0 for _, slot in held["slots"]}
    total = torch.zeros(cache.size, dtype=torch.float64)
    for slot, weight in weights.items():
        total += weight * inside.row_in(cache, slot).double()
    return float((state.sum.double() - total).abs().max() / total.abs().max())


@pytest.mark.parametrize("name", SCRUBBED)
def test_the_sum_is_that_of_the_rows(name: str) -> None:
    """After two cycles, and with a checkpoint in the middle of one; a sum that was wrong is right again."""
    size = 3000
    server, whole = SCRUBBED[name](torch.zeros(size)), SCRUBBED[name](torch.zeros(size))
    arrive(server, 0, 100, 0, size), arrive(whole, 0, 100, 0, size)
    for turn in range(100, 260, 13):  # in the middle of passes: each takes two arrivals
        other = fastagg.server.loading.server_from(server.state_dict())
        arrive(other, turn, turn + 13, 0, size), arrive(whole, turn, turn + 13, 0, size)
        assert same(other.state_dict(), whole.state_dict())
        server = other
    assert distance_from_its_rows(server) < 1e-6
    inside.direction(server).sum.add_(1e-3)
    assert distance_from_its_rows(server) > 1e-6
    arrive(server, 300, 300 + 4 * 23 + 3, 0, size)
    assert distance_from_its_rows(server) < 1e-6


def test_a_heavy_row_that_leaves_takes_its_rounding_along() -> None:
    server = fastagg.ACE(torch.zeros(D), lr=1.0, num_clients=2, warmup="partial", weighting="samples")
    for client, weight, seed in ((0, 1e12, 0), (1, 1.0, 1), (0, 1.0, 2)):
        server.dispatch(client)
        before = server.flat.clone()
        server.receive(client, update(seed, D).float(), num_samples=weight)
    mean = (update(1, D).double() + update(2, D).double()) / 2
    torch.testing.assert_close((server.flat - before).double(), -mean, rtol=1e-3, atol=1e-6)
