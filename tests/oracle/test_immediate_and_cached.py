"""Immediate rules and caches of the oracle against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.oracle import (
    ACE,
    ACED,
    AsyncFedED,
    DelayAdaptiveASGD,
    FedAsync,
)
from support.oracle.helpers import turn

# ── immediate ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("a", "b", "table"),
    [
        (5.0, 5.0, {0: 1.0, 4: 1.0, 5: 1.0, 6: 1 / 6, 7: 1 / 11, 8: 1 / 16}),
        (0.5, 0.5, {0: 1.0, 1: 1 / 1.25, 2: 1 / 1.75}),
    ],
)
def test_hinge_table(a: float, b: float, table: dict[int, float]) -> None:
    """Eq. 41 with two of Table 3's settings."""
    for tau, s in table.items():
        server = FedAsync([0.0], alpha=0.6, policy="hinge", a=a, b=b)
        server.dispatch(9)
        for _ in range(tau):
            turn(server, 0, [0.0])
        out = server.receive(9, [0.0])
        assert (out["delay"], out["weight"]) == (tau, pytest.approx(s))
        assert out["step_size"] == pytest.approx(0.6 * s)


def test_fedasync_polynomial() -> None:
    server = FedAsync([0.0], alpha=0.5, policy="polynomial", a=0.5)
    server.dispatch(9)
    for client in range(3):
        turn(server, client, [1.0])
    assert server.receive(9, [0.0])["step_size"] == pytest.approx(0.25)


def test_delay_adaptive_asgd_options() -> None:
    """eta = 1, tau_C = 2, one gradient of delay 4."""
    for stale, lipschitz, step in (("drop", None, 0.0), ("scaled", None, 0.5), ("lipschitz", 0.25, 0.25)):
        server = DelayAdaptiveASGD([0.0], 1.0, 2, stale, lipschitz)  # type: ignore[arg-type]
        server.dispatch(9)
        for client in range(4):
            turn(server, client, [0.0])
        out = server.receive(9, [1.0])
        assert (out["step_size"], out["applied"]) == (step, step > 0.0)
        assert (server.x[0], server.t) == (-step, 5)


def test_a_drop_need_not_count_as_a_version() -> None:
    server = DelayAdaptiveASGD([0.0], 1.0, 0, "drop", idle_advances=False)
    server.dispatch(9)
    turn(server, 0, [0.0])
    assert server.receive(9, [1.0])["version"] == 1


def test_a_dropped_update_leaves_the_model_buffers() -> None:
    server = DelayAdaptiveASGD([0.0], 1.0, 0, "drop", buffers={"mean": np.zeros(1)})
    server.dispatch(9)
    turn(server, 0, [0.0], buffers={"mean": [5.0]})
    server.receive(9, [1.0], buffers={"mean": [7.0]})
    assert server.buffers["mean"][0] == 5.0


def test_asyncfeded_by_hand() -> None:
    """lambda = 1, eps = 1, gamma_bar = 3, kappa = 1/2, K = 10."""
    server = AsyncFedED([0.0, 0.0], lam=1.0, eps=1.0, gamma_bar=3.0, kappa=0.5, local_steps=10)
    server.dispatch(0)
    server.dispatch(1)
    out = server.receive(0, [6.0, 8.0])  # gamma = 0: eta = 1, K = 10 + floor(1.5)
    assert out["step_size"] == 1.0 and list(server.x) == [6.0, 8.0]
    assert server.local_steps(0) == 11 and server.local_steps(1) == 10
    out = server.receive(1, [2.5, 0.0])  # gamma = 10/2.5: eta = 1/5, K = 10 + floor(-1/2)
    assert out["step_size"] == pytest.approx(1 / 5)
    assert list(server.x) == pytest.approx([6.5, 8.0])
    assert server.local_steps(1) == 9


def test_asyncfeded_keeps_k_in_its_bounds() -> None:
    for k_max, first, second in ((None, 4, 1), (3, 3, 1)):
        server = AsyncFedED([0.0], 1.0, 1.0, gamma_bar=1.2, kappa=1.0, local_steps=3, euclidean={"k_max": k_max})
        server.dispatch(1)
        turn(server, 0, [1.0])
        assert server.local_steps(0) == first  # floor(1.2) = 1
        server.receive(1, [0.25])  # gamma = 4: 3 + floor(-2.8) = 0, kept at 1
        assert server.local_steps(1) == second


@pytest.mark.parametrize(("k_from", "k"), [("dispatch", 11), ("latest", 12)])
def test_asyncfeded_two_answers_of_one_client(k_from: Any, k: int) -> None:
    server = AsyncFedED([0.0], 1.0, 1.0, gamma_bar=1.5, local_steps=10, euclidean={"k_from": k_from})
    server.dispatch(0)
    turn(server, 1, [4.0])
    server.dispatch(0)  # both dispatches said K = 10
    server.receive(0, [8.0], version=0)  # gamma = 4/8: K = 10 + 1
    assert server.local_steps(0) == 11
    server.receive(0, [1000.0], version=1)  # gamma below 1/2: floor is 1 again
    assert server.local_steps(0) == k


def test_asyncfeded_update_of_zero_and_gamma_max() -> None:
    server = AsyncFedED([0.0], 1.0, 1.0, euclidean={"gamma_max": 2.0})
    server.dispatch(1)
    server.dispatch(2)
    assert not turn(server, 0, [0.0])["applied"]
    assert server.t == 0 and server.local_steps(0) == 10
    turn(server, 0, [1.0])
    assert not server.receive(1, [0.25])["applied"]  # gamma = 4
    assert server.t == 1 and server.x[0] == 1.0 and server.local_steps(1) == 9
    assert server.receive(2, [0.5])["step_size"] == pytest.approx(1 / 3)  # gamma = 2 still passes


# ── caches ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_ace_partial_warmup_by_hand() -> None:
    server = ACE([0.0], lr=1.0, num_clients=2, warmup="partial")
    turn(server, 1, [4.0])
    turn(server, 1, [2.0])
    turn(server, 0, [4.0])
    assert (server.x[0], server.t) == (-9.0, 3)  # 4 + 2 + (2+4)/2


def test_aced_mass_expiry_at_tau_algo_plus_2() -> None:
    """n = 4, tau_algo = 2; only client 0 ever comes back. All start at 1, so they count up to t = 3."""
    server = ACED([0.0], lr=1.0, num_clients=4, max_delay=2)
    for client in range(4):
        turn(server, client, [float(client)])
    for client in range(4):
        server.dispatch(client)
    sizes = {0: len(server.active_set.active)}
    for t in range(1, 6):
        assert server.t == t
        turn(server, 0, [0.0])
        sizes[t] = len(server.active_set.active)
    assert sizes == {0: 4, 1: 4, 2: 4, 3: 4, 4: 1, 5: 1}
    assert server.x[0] == pytest.approx(-1.5 * 4)


def test_aced_late_client_rejoins_one_step_after_it_returns() -> None:
    server = ACED([0.0], lr=1.0, num_clients=2, max_delay=1)
    for client in range(2):
        turn(server, client, [0.0])
    server.dispatch(1)
    turn(server, 0, [0.0])
    turn(server, 0, [0.0])
    assert server.t == 3
    server.receive(1, [10.0])  # t - 1 = 2 > 1: left out
    assert server.active_set.active == [0] and server.x[0] == 0.0
    server.dispatch(1)  # and so dated 4
    turn(server, 0, [0.0])
    assert server.active_set.active == [0, 1] and server.x[0] == -5.0


def test_aced_dates_the_gradient_in_the_other_reading() -> None:
    server = ACED([0.0], lr=1.0, num_clients=2, max_delay=1, freshness="gradient")
    for client in range(2):
        turn(server, client, [0.0])
    server.dispatch(1)  # version 1
    sizes = []
    for _ in range(2):
        turn(server, 0, [0.0])
        sizes.append(len(server.active_set.active))
    assert sizes == [2, 1]  # the first gradients are dated 0: client 1's expires at t = 2 = tau_algo + 1
    assert server.receive(1, [10.0])["applied"]  # dated 1 at t = 3: never counts
    assert server.active_set.active == [0] and server.x[0] == 0.0
    server.dispatch(1)
    server.receive(1, [10.0])  # dated 4 at t = 4: counts at once; client 0's is dated 2
    assert server.active_set.active == [1] and server.x[0] == -10.0


@pytest.mark.parametrize("advances", [True, False])
def test_aced_empty_active_set_applies_nothing(advances: bool) -> None:
    server = ACED([0.0], 1.0, 1, max_delay=0, freshness="gradient", idle_advances=advances)
    turn(server, 0, [1.0])
    server.dispatch(0)
    turn(server, 0, [1.0])
    server.dispatch(0)  # version 2
    turn(server, 0, [1.0], version=2)
    server.dispatch(0)  # version 3
    server.outstanding.add((0, 1))
    before = server.x.copy()
    out = server.receive(0, [1.0], version=1)
    assert (out["applied"], out["step_size"], out["version"]) == (False, None, 4 if advances else 3)
    assert np.array_equal(server.x, before)
