"""The oracle on random traces against line-by-line loops of the pseudo-code that keep their own books."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from support.oracle import ACE, ACED, ASGD, CA2FL, FADAS, AsyncFedED, DelayAdaptiveASGD, FedAsync, FedAvg, FedBuff
from support.oracle.helpers import SMALL, Loop, Vector, quick, same
from support.traces import Case, Return, Send, Updates, cases, drive, synchronous_cases


@pytest.mark.parametrize("rule", ["scaled", "reciprocal"])
@quick
@given(case=cases(size=SMALL, all_sent=True), m_size=st.integers(1, 4))
def test_fadas_against_its_listing(case: Case, m_size: int, rule: Any) -> None:
    acc = np.zeros(case.size)
    taus: list[int] = []
    m, v, vhat = np.zeros(case.size), np.zeros(case.size), np.zeros(case.size)

    def arrive(server: Any, client: int, u: Vector, s: int) -> bool:
        nonlocal acc, m, v, vhat, taus
        acc, taus = acc + u, [*taus, server.t - s]
        if len(taus) < m_size:
            return False
        d = acc / m_size
        m = 0.9 * m + (1 - 0.9) * d
        v = 0.99 * v + (1 - 0.99) * d * d
        vhat = np.maximum(vhat, v)
        eta = 0.3
        if max(taus) > 2:
            eta = min(eta, 1 / max(taus)) if rule == "reciprocal" else min(eta, eta / max(taus))
        server.x = server.x + eta * m / (np.sqrt(vhat) + 1e-8)
        acc, taus, server.t = np.zeros(case.size), [], server.t + 1
        return True

    oracle = FADAS(case.x0, lr=0.3, buffer_size=m_size, delay_threshold=2, delay_rule=rule)
    same(oracle, Loop(case, arrive), case)


@pytest.mark.parametrize("warmup", ["full", "partial"])
@quick
@given(case=cases(size=SMALL))
def test_ace_against_its_listing(case: Case, warmup: Any) -> None:
    cache = np.full((case.num_clients, case.size), np.nan)

    def arrive(server: Any, client: int, g: Vector, s: int) -> bool:
        cache[client] = g
        if warmup == "full" and np.isnan(cache).any():
            return False
        server.x = server.x - 0.5 * np.nanmean(cache, axis=0)
        server.t += 1
        return True

    same(ACE(case.x0, 0.5, case.num_clients, warmup), Loop(case, arrive), case)


def sent_as_listed(case: Case) -> Case:
    """The trace with the listing's sends: to all at the start and at the first step, to a client when it answers."""
    trace = [Send(client) for client in range(case.num_clients)]
    waiting = set(range(case.num_clients))
    for event in case.trace:
        if not isinstance(event, Return):
            continue
        trace.append(event._replace(which=None))
        trace.append(Send(event.client))
        if event.client in waiting:
            waiting.discard(event.client)
            if not waiting:
                trace += [Send(client) for client in range(case.num_clients)]
    return replace(case, trace=trace)


@quick
@given(cases(size=SMALL, all_heard=True).map(sent_as_listed), st.integers(0, 6))
def test_aced_against_its_listing(case: Case, tau: int) -> None:
    cache = np.full((case.num_clients, case.size), np.nan)
    t_start = np.ones(case.num_clients)  # line 2

    def arrive(server: Any, j: int, g: Vector, s: int) -> bool:
        cache[j] = g  # line 5
        if np.isnan(cache).any():
            return False
        if server.t == 0:
            server.x = server.x - 0.5 * cache.mean(axis=0)  # line 2
        else:
            active = server.t - t_start <= tau  # line 6
            server.x = server.x - 0.5 * cache[active].mean(axis=0)  # line 8
            t_start[j] = server.t + 1  # line 10
        server.t += 1
        return True

    same(ACED(case.x0, 0.5, case.num_clients, max_delay=tau), Loop(case, arrive), case)


@quick
@given(cases(size=SMALL, all_heard=True), st.integers(0, 4))
def test_aced_by_the_text_of_eq_7(case: Case, tau: int) -> None:
    """A gradient is as old as the version that it was computed on."""
    cache = np.full((case.num_clients, case.size), np.nan)
    computed_on = np.zeros(case.num_clients)

    def arrive(server: Any, j: int, g: Vector, s: int) -> bool:
        warm = not np.isnan(cache).any()
        cache[j], computed_on[j] = g, s
        if np.isnan(cache).any():
            return False
        active = server.t - computed_on <= tau if warm else np.full(case.num_clients, True)
        if active.any():
            server.x = server.x - 0.5 * cache[active].mean(axis=0)
        server.t += 1  # also without a step
        return bool(active.any())

    same(ACED(case.x0, 0.5, case.num_clients, max_delay=tau, freshness="gradient"), Loop(case, arrive), case)


@pytest.mark.parametrize("stale", ["drop", "scaled", "lipschitz"])
@quick
@given(case=cases(size=SMALL, all_sent=True))
def test_delay_adaptive_asgd_against_its_listing(case: Case, stale: Any) -> None:
    def arrive(server: Any, i: int, g: Vector, s: int) -> bool:
        tau = server.t - s
        late = {"drop": 0.0, "scaled": 0.5 * 2 / max(tau, 1), "lipschitz": min(0.5, 1 / (4 * 0.25 * max(tau, 1)))}
        eta = 0.5 if tau <= 2 else late[stale]
        server.x = server.x - eta * g
        server.t += 1
        return eta > 0.0

    same(DelayAdaptiveASGD(case.x0, 0.5, 2, stale, 0.25), Loop(case, arrive), case)


@pytest.mark.parametrize("repeat", ["start", "latest"])
@quick
@given(case=cases(size=SMALL), m_size=st.integers(1, 4))
def test_ca2fl_against_its_listing(case: Case, m_size: int, repeat: Any) -> None:
    """A client that comes twice in a round, as in the paper, and as in public programs."""
    n = case.num_clients
    h = np.zeros((n, case.size))
    h_next, acc = h.copy(), np.zeros(case.size)
    arrived: list[int] = []

    def arrive(server: Any, i: int, u: Vector, s: int) -> bool:
        nonlocal h, h_next, acc, arrived
        acc = acc + (u - (h if repeat == "start" else h_next)[i])  # line 6
        h_next[i] = u  # line 7
        arrived = [*arrived, i]
        if len(arrived) < m_size:
            return False
        by = len(set(arrived)) if repeat == "start" else m_size
        server.x = server.x + 0.7 * (h.mean(axis=0) + acc / by)  # lines 18, 19
        h, h_next, acc, arrived = h_next, h_next.copy(), np.zeros(case.size), []
        server.t += 1
        return True

    same(CA2FL(case.x0, n, m_size, 0.7, repeat), Loop(case, arrive), case)


@pytest.mark.parametrize("policy", ["constant", "hinge", "polynomial"])
@quick
@given(case=cases(size=SMALL, all_sent=True))
def test_fedasync_against_its_equations(case: Case, policy: Any) -> None:
    def arrive(server: Any, i: int, u: Vector, s: int) -> bool:
        tau = server.t - s
        hinge = 1.0 if tau <= 2 else 1 / (0.5 * (tau - 2) + 1)
        a_t = 0.6 * {"constant": 1.0, "hinge": hinge, "polynomial": (tau + 1) ** -0.5}[policy]
        server.x = (1 - a_t) * server.x + a_t * (server.models[s] + u)
        server.t += 1
        return True

    same(FedAsync(case.x0, 0.6, policy, a=0.5, b=2), Loop(case, arrive), case)


@quick
@given(cases(size=SMALL, all_sent=True))
def test_asyncfeded_against_its_equations(case: Case) -> None:
    def arrive(server: Any, i: int, u: Vector, s: int) -> bool:
        if not u.any():
            return False
        gamma = np.sqrt(np.sum((server.x - server.models[s]) ** 2)) / np.sqrt(np.sum(u**2))
        server.x = server.x + 2.0 / (gamma + 0.5) * u
        server.t += 1
        return True

    same(AsyncFedED(case.x0, lam=2.0, eps=0.5), Loop(case, arrive), case)


@quick
@given(synchronous_cases(size=SMALL))
def test_fedavg_is_eq_38(drawn: tuple[Case, int]) -> None:
    case, m = drawn
    arrived: list[tuple[int, Vector]] = []

    def arrive(server: Any, client: int, u: Vector, s: int) -> bool:
        arrived.append((next(counts), server.models[s] + u))
        if len(arrived) < m:
            return False
        total = sum(n for n, _ in arrived)
        server.x = sum((n / total * model for n, model in arrived), np.zeros(case.size))
        arrived.clear()
        server.t += 1
        return True

    counts = iter([e.num_samples for e in case.trace if isinstance(e, Return)])
    same(FedAvg(case.x0, m), Loop(case, arrive), case)


@pytest.mark.parametrize("want", ["stale", "repeat in a buffer", "two versions owed", "half full at the end"])
def test_interesting_traces_are_found(want: str) -> None:
    def interesting(case: Case) -> bool:
        server = ASGD(case.x0, 1.0) if want in ("stale", "two versions owed") else FedBuff(case.x0, 1.0, 3)
        records = drive(server, case.trace, Updates(1))
        arrivals = [r for r in records if isinstance(r.event, Return)]
        if want == "stale":
            return any((r.delay or 0) >= 3 for r in arrivals)
        if want == "two versions owed":
            return len({v for c, v in server.outstanding if c == 0}) >= 2
        if want == "half full at the end":
            return len(arrivals) > 3 and len(arrivals) % 3 == 2
        return any(a.event.client == b.event.client and not a.applied for a, b in pairwise(arrivals))

    find(
        cases(size=st.just(1)),
        interesting,
        settings=settings(
            max_examples=2000, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        ),
    )
