"""The float64 model on random traces against line-by-line loops of the papers' pseudo-code."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.book import Vector
from support.properties import examples
from support.traces import Case, Driven, Return, Send, cases, drive

SMALL = st.sampled_from((1, 2, 3, 7))
quick = examples(60)
GRADIENT = {"kind": "gradient"}


SGD = {"name": "SGD", "lr": 0.5}


def ace(case: Case, name: str, **how: Any) -> Driven:
    """ACE or ACED with a rate of 0.5."""
    return Driven(case.x0, {"name": name, "num_clients": case.num_clients, "warmup": "full", **GRADIENT, **how}, SGD)


def same(model: Driven, loop: Any, case: Case) -> None:
    """Both end every event with the same model, version and decision."""
    ra, rb = (drive(one, case, lambda s: s.x.copy()) for one in (model, loop))
    np.testing.assert_allclose([r.x for r in ra], [r.x for r in rb], rtol=1e-11, atol=1e-11)
    assert [(r.applied, r.version, r.delay) for r in ra] == [(r.applied, r.version, r.delay) for r in rb]


class Loop:
    """A literal server loop: knows x, t and the models sent; `arrive(self, client, u, s)` is the rule."""

    def __init__(self, case: Case, arrive: Callable[[Any, int, Vector, int], bool]) -> None:
        self.x = case.x0.astype(np.float64)
        self.n = case.num_clients
        self.t = 0
        self.models = {0: self.x}
        self.sent: dict[int, int] = {}
        self.arrive = arrive

    def dispatch(self, client: int) -> int:
        self.models[self.t] = self.x
        self.sent[client] = self.t
        return self.t

    def receive(self, client: int, update: Any, version: int | None = None, **_: Any) -> dict[str, Any]:
        s = self.sent[client] if version is None else version
        t = self.t
        applied = self.arrive(self, client, np.asarray(update, dtype=np.float64), s)
        return {"applied": applied, "version": self.t, "delay": t - s, "step_size": None}


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

    model = Driven(
        case.x0, {"name": "Buffer", "size": m_size}, {"name": "AMSGrad", "lr": 0.3, "betas": (0.9, 0.99), "eps": 1e-8},
        {"name": "DelayAdaptive", "threshold": 2, "rule": rule},
    )  # fmt: skip
    same(model, Loop(case, arrive), case)


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

    same(ace(case, "AllClients", warmup=warmup), Loop(case, arrive), case)


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

    same(ace(case, "ActiveSet", max_delay=tau, freshness="dispatch"), Loop(case, arrive), case)


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

    same(ace(case, "ActiveSet", max_delay=tau, freshness="gradient"), Loop(case, arrive), case)


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

    policy = {"name": "DelayAdaptive", "threshold": 2, "rule": "threshold" if stale == "scaled" else stale}
    model = Driven(case.x0, {"name": "Single", **GRADIENT}, SGD, {**policy, "lipschitz": 0.25})
    same(model, Loop(case, arrive), case)


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

    direction = {"name": "Calibrated", "num_clients": n, "size": m_size, "repeat": repeat}
    same(Driven(case.x0, direction, {"name": "SGD", "lr": 0.7}), Loop(case, arrive), case)


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

    named = {"name": policy.capitalize(), "a": 0.5, "b": 2}
    same(Driven(case.x0, {"name": "Mixing"}, {"name": "SGD", "lr": 0.6}, named), Loop(case, arrive), case)


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

    policy = {"name": "Euclidean", "lam": 2.0, "eps": 0.5, "gamma_bar": 3.0, "kappa": 1.0, "local_steps": 10}
    same(Driven(case.x0, {"name": "Single"}, {"name": "SGD", "lr": 1.0}, policy), Loop(case, arrive), case)
