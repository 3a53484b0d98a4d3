"""Rules that are equal according to the papers are equal on random traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import (
    ACE,
    ACED,
    ASGD,
    CA2FL,
    SGD,
    ACEClientCache,
    Adam,
    AMSGrad,
    Buffer,
    ClientGradients,
    Composed,
    Constant,
    DelayAdaptiveASGD,
    FedBuff,
    Hinge,
    Momentum,
    Single,
)
from support.oracle.helpers import SMALL, Vector, models, play, quick, same
from support.traces import Case, Return, Updates, cases, drive


@quick
@given(cases(size=SMALL))
def test_fedbuff_of_one_is_asgd_on_deltas(case: Case) -> None:
    records = play(FedBuff(case.x0, lr=0.5, buffer_size=1), case)
    negated = Updates(case.size, ("normal", "sparse", "zero"), convert=lambda u: -u)
    asgd = drive(ASGD(case.x0, lr=0.5), case.trace, negated, snapshot=lambda s: s.x.copy())
    np.testing.assert_array_equal(models(asgd), models(records))


@quick
@given(cases(size=SMALL, all_heard=True), st.sampled_from(("dispatch", "gradient")))
def test_aced_with_a_large_limit_is_ace(case: Case, freshness: Any) -> None:
    aced = ACED(case.x0, 0.5, case.num_clients, max_delay=10**6, freshness=freshness)
    assert np.array_equal(models(play(aced, case)), models(play(ACE(case.x0, 0.5, case.num_clients), case)))


@quick
@given(cases(size=SMALL, all_heard=True), st.sampled_from(("full", "partial")))
def test_ace_with_client_caches_is_ace(case: Case, warmup: Any) -> None:
    clients, updates = ClientGradients(), Updates(case.size)

    def difference(event: Return) -> Vector:
        return clients.difference(event.client, updates(event))

    ours = ACEClientCache(case.x0, 0.5, case.num_clients, warmup)
    sent = drive(ours, case.trace, difference, snapshot=lambda s: s.x.copy())
    direct = drive(ACE(case.x0, 0.5, case.num_clients, warmup), case.trace, updates, snapshot=lambda s: s.x.copy())
    np.testing.assert_allclose(models(sent), models(direct), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("repeat", ["start", "latest"])
def test_ca2fl_before_any_repeat(repeat: Any) -> None:
    """While every client is new, h_i = 0: FedBuff's mean plus h, the mean of what earlier rounds cached."""
    rng = np.random.default_rng(0)
    ca2fl, fedbuff = CA2FL(np.zeros(3), 8, 2, repeat=repeat), FedBuff(np.zeros(3), 1.0, 2)
    earlier = np.zeros(3)
    for first in range(0, 8, 2):
        h, pair = earlier / 8, rng.standard_normal((2, 3))
        old = ca2fl.x - fedbuff.x
        for i, u in enumerate(pair):
            for server in (ca2fl, fedbuff):
                server.dispatch(first + i)
                server.receive(first + i, u)
        np.testing.assert_allclose(ca2fl.x - fedbuff.x, old + h, rtol=1e-12, atol=1e-15)
        earlier += pair.sum(axis=0)
    assert np.any(ca2fl.x != fedbuff.x)


@quick
@given(cases(size=SMALL))
def test_the_two_readings_of_ca2fl_agree_without_repeats_in_a_round(case: Case) -> None:
    def one(repeat: Any) -> Vector:
        return models(play(CA2FL(case.x0, case.num_clients, 1, repeat=repeat), case))

    np.testing.assert_allclose(one("start"), one("latest"), rtol=1e-12, atol=1e-12)


def test_amsgrad_with_zero_betas_divides_by_the_largest_direction_so_far() -> None:
    rng = np.random.default_rng(1)
    server = Composed(np.zeros(5), Single(), AMSGrad(0.1, (0.0, 0.0), 1e-3))
    largest, x = np.zeros(5), np.zeros(5)
    for _ in range(10):
        d = rng.standard_normal(5)
        server.dispatch(0)
        server.receive(0, d)
        largest = np.maximum(largest, np.abs(d))
        x = x + 0.1 * d / (largest + 1e-3)
        np.testing.assert_allclose(server.x, x, rtol=1e-12)


def test_bias_correction_factors_that_the_specification_names() -> None:
    """With D constant and eps = 0, m is (1-b1^r)*D: the ratio to the corrected step is the stated factor."""
    factors = {}
    plain, corrected = (AMSGrad(1.0, (0.9, 0.99), 0.0, bias_correction=b) for b in (False, True))
    one, zero = np.ones(1), np.zeros(1)
    for r in range(1, 101):
        factors[r] = plain.step(zero, one, 1.0)[0] / corrected.step(zero, one, 1.0)[0]
    expected = {r: (1 - 0.9**r) / np.sqrt(1 - 0.99**r) for r in factors}
    assert factors == pytest.approx(expected, rel=1e-12)
    assert 1 / factors[14] == pytest.approx(0.47, abs=0.005)
    assert 1 / factors[100] == pytest.approx(0.80, abs=0.005)


@quick
@given(cases(size=SMALL), st.integers(1, 3))
def test_any_parts_compose(case: Case, m_size: int) -> None:
    """Parts do not interfere: a constant policy changes nothing, momentum 0 is sgd, Adam is AMSGrad while v
    does not fall, and a hinge that never bites is no hinge."""
    plain = FedBuff(case.x0, 0.5, m_size)
    same(plain, Composed(case.x0, Buffer(m_size), Momentum(0.5, 0.0), Constant()), case)
    hinged = Composed(case.x0, Buffer(m_size), SGD(0.5), Hinge(1.0, 10**6))
    same(FedBuff(case.x0, 0.5, m_size), hinged, case)
    adam = Composed(case.x0, Single(), Adam(0.5, (0.9, 1.0)))
    same(adam, Composed(case.x0, Single(), AMSGrad(0.5, (0.9, 1.0))), case)


@quick
@given(cases(size=SMALL))
def test_delay_adaptive_asgd_with_a_large_threshold_is_asgd(case: Case) -> None:
    same(DelayAdaptiveASGD(case.x0, 0.5, 10**6, "drop"), ASGD(case.x0, 0.5), case)
