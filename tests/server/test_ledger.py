"""A crowd in the ledger and exact sums, each against a model that does it the slow way. Tasks and the active set:
tests/fuzz. The scrub: test_sums.py."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import inside
from support.presets import update
from support.properties import examples

import fastagg

pytestmark = pytest.mark.kernel

D = 5


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
