"""Rules that are equal according to the papers are equal on random traces."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import (
    ACE,
    ACED,
    ASGD,
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
