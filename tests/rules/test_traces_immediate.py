"""Immediate, cosine-weighted and synchronous rules against the independent transcription, and their equivalences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support import oracle
from support.properties import examples
from support.traces import Case, Return, Send, Updates, cases, drive, synchronous_cases
from test_traces import ADAPTIVE, agree

import fastagg
from fastagg.errors import ConfigError, UnknownVersion

pytestmark = pytest.mark.kernel

SHAPES = ("normal", "sparse", "zero")
common = st.fixed_dictionaries(
    {}, optional={"clip_norm": st.sampled_from([0.5, 3.0]), "weighting": st.sampled_from(["uniform", "samples"])}
)


@given(case=cases(), common=common)
def test_asgd(case: Case, common: dict[str, Any]) -> None:
    agree(fastagg.ASGD(case.x0, lr=0.1, **common), oracle.ASGD(case.x0, lr=0.1, **common), case, SHAPES)


@given(
    case=cases(),
    common=common,
    stale=st.sampled_from([("lipschitz", 2.0), ("drop", None), ("scaled", None)]),
    threshold=st.integers(0, 3),
)
def test_delay_adaptive_asgd(case: Case, common: dict[str, Any], stale: Any, threshold: int) -> None:
    how = {"lr": 0.1, "delay_threshold": threshold, "stale": stale[0], "lipschitz": stale[1], **common}
    agree(fastagg.DelayAdaptiveASGD(case.x0, **how), oracle.DelayAdaptiveASGD(case.x0, **how), case, SHAPES)


@given(case=cases())
def test_fedbuff_of_one_is_asgd_on_deltas_to_the_bit(case: Case) -> None:
    ours = fastagg.FedBuff(case.x0, lr=0.3, buffer_size=1)
    asgd = fastagg.Server(case.x0, fastagg.Single(), fastagg.SGD(0.3))
    for server in (ours, asgd):
        drive(server, case.trace, Updates(case.size))
    assert torch.equal(ours.flat, asgd.flat)


@given(case=cases(size=st.sampled_from([1, 5, 1030])))
def test_amsgrad_without_memory_is_sign_descent(case: Case) -> None:
    """With b1 = b2 = 0 the first step is lr*D/(|D| + eps), and later ones divide by the largest |D| so far."""
    server = fastagg.Server(case.x0, fastagg.Single(), fastagg.AMSGrad(0.1, (0.0, 0.0), 0.03))
    x, most = case.x0.astype(np.float64), np.zeros(case.size)
    got = drive(server, case.trace, Updates(case.size, SHAPES), snapshot=lambda s: s.flat.numpy().copy())
    for record in got:
        if record.applied is not None:
            d = Updates(case.size, SHAPES)(record.event).astype(np.float64)
            most = np.maximum(most, np.abs(d))
            x = x + 0.1 * d / (most + 0.03)
        np.testing.assert_allclose(record.x, x, rtol=1e-5, atol=1e-5)


# A task of a version that is sent again, after an answer has changed how many steps its client is to take.
SENT_AGAIN = Case(2, 3, 0, [
    Send(0), Send(1), Return(0, None, 0, 1), Return(1, None, 0, 1), Send(0), Send(0), Send(0), Send(1),
    Return(0, None, 0, 1), Send(1), Return(1, 0, 0, 1), Send(1), Return(1, None, 0, 1), Send(1),
])  # fmt: skip


@example(case=SENT_AGAIN, common={}, how={"gamma_bar": 0.3, "kappa": 1.0, "gamma_max": 0.5})
@given(
    case=cases(),
    common=common,
    how=st.fixed_dictionaries(
        {"gamma_bar": st.sampled_from([0.3, 3.0]), "kappa": st.sampled_from([0.0, 1.0, 4.0])},
        optional={"gamma_max": st.sampled_from([0.5, 2.0]), "max_local_steps": st.just(12)},
    ),
)
@examples(200)
def test_asyncfeded(case: Case, common: dict[str, Any], how: dict[str, Any]) -> None:
    x0 = case.x0 * 0.1
    case_x = Updates(case.size, SHAPES)
    extra = {k: how[k] for k in ("gamma_max",) if k in how}
    if "max_local_steps" in how:
        extra["k_max"] = how["max_local_steps"]
    theirs = oracle.AsyncFedED(
        x0, lam=0.6, eps=0.9, gamma_bar=how["gamma_bar"], kappa=how["kappa"], euclidean=extra, **common
    )
    clear = Clear(theirs, how["gamma_bar"], how["kappa"], how.get("gamma_max"))
    want = drive(clear, case.trace, case_x, snapshot=lambda s: s.server.x.copy())
    assume(clear.ok)  # no gamma so near a jump of the floor that float32 may fall on the other side
    ours = fastagg.AsyncFedED(x0, lam=0.6, eps=0.9, **how, **common)
    got = drive(ours, case.trace, case_x, snapshot=lambda s: s.flat.double().numpy().copy())
    for a, b in zip(got, want, strict=True):
        assert (a.local_steps, a.applied, a.version, a.delay) == (b.local_steps, b.applied, b.version, b.delay)
        assert (a.step_size or 0.0) == pytest.approx(b.step_size or 0.0, rel=1e-4)
        np.testing.assert_allclose(a.x, b.x, rtol=0, atol=2e-5 * (1 + np.abs(b.x).max()))


class Clear:
    """Watches an oracle for gammas within rounding of a jump."""

    def __init__(self, server: Any, gamma_bar: float, kappa: float, gamma_max: float | None) -> None:
        self.server, self.gamma_bar, self.kappa, self.gamma_max, self.ok = server, gamma_bar, kappa, gamma_max, True

    def dispatch(self, client: int) -> int:
        return int(self.server.dispatch(client))

    def local_steps(self, client: int) -> int | None:
        return self.server.local_steps(client)

    def receive(self, *arguments: Any, **keywords: Any) -> Any:
        euclidean = self.server.euclidean
        euclidean.last_gamma = None
        receipt = self.server.receive(*arguments, **keywords)
        gamma = euclidean.last_gamma
        if gamma is not None and gamma > 0:
            jump = (self.gamma_bar - gamma) * self.kappa
            near = self.kappa > 0 and abs(jump - round(jump)) < 1e-4 * (1 + abs(jump))
            self.ok &= not near and (self.gamma_max is None or abs(gamma - self.gamma_max) > 1e-4)
        return receipt


@given(case=cases(), common=common, m=st.integers(1, 4), control=st.booleans())
def test_fedac(case: Case, common: dict[str, Any], m: int, control: bool) -> None:
    class Ours:
        """Sends a control change drawn from the event's update along with it."""

        def __init__(self) -> None:
            self.server = fastagg.FedAC(case.x0, lr=0.01, buffer_size=m, **ADAPTIVE, **common)
            self.dispatch = self.server.dispatch

        def receive(self, client: int, update: Any, **k: Any) -> Any:
            return self.server.receive(client, update, control=np.cos(update) if control else None, **k)

    class Theirs(oracle.FedAC):
        def receive(self, client: int, update: Any, **k: Any) -> Any:  # type: ignore[override]
            return super().receive(client, update, control_delta=np.cos(update) if control else None, **k)

    ours, theirs = Ours(), Theirs(case.x0, lr=0.01, buffer_size=m, **ADAPTIVE, **common)
    updates = Updates(case.size, SHAPES)
    drive(ours, case.trace, updates)
    drive(theirs, case.trace, updates)
    np.testing.assert_allclose(ours.server.flat.numpy(), theirs.x, rtol=1e-4, atol=1e-4)
    wanted = np.broadcast_to(np.asarray(theirs.control, dtype=np.float64), (case.size,))
    np.testing.assert_allclose(ours.server.control.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_drift_correction_is_the_oracles() -> None:
    rng = np.random.default_rng(0)
    client, c_i = fastagg.clients.DriftCorrection(), np.zeros(5)
    for _ in range(3):
        x_s, y, control = (rng.standard_normal(5) for _ in range(3))
        delta, c_new = oracle.FedAC.correct(x_s, y, control, c_i, 4, 0.1)
        got, change = client.correct(*(torch.from_numpy(v) for v in (x_s, y, control)), steps=4, lr=0.1)
        np.testing.assert_allclose(got.numpy(), delta)
        np.testing.assert_allclose(change.numpy(), c_new - c_i)
        c_i = c_new


SYNCHRONOUS = {
    "FedAvg": {"lr": 0.5},
    "FedAvgM": {"lr": 0.5, "beta": 0.8},
    "FedAdam": {"lr": 0.05, **ADAPTIVE},
    "FedYogi": {"lr": 0.05, **ADAPTIVE},
    "FedAMS": {"lr": 0.05, **ADAPTIVE},
    "FedAdagrad": {"lr": 0.05, "beta": 0.5, "eps": 0.03},
}


@pytest.mark.parametrize("name", SYNCHRONOUS)
@given(both=synchronous_cases(), common=common)
@examples(40)
def test_synchronous_rules(name: str, both: tuple[Case, int], common: dict[str, Any]) -> None:
    case, clients = both
    how = {"clients_per_round": clients, **SYNCHRONOUS[name], **common}
    agree(getattr(fastagg, name)(case.x0, **how), getattr(oracle, name)(case.x0, **how), case, SHAPES)


def test_an_update_of_an_earlier_round_is_refused() -> None:
    server = fastagg.FedAvg(torch.zeros(3), clients_per_round=1)
    for client in range(2):
        server.dispatch(client)
    server.receive(0, torch.ones(3), num_samples=1)
    before = server.state_dict()
    with pytest.raises(UnknownVersion, match="round 0"):
        server.receive(1, torch.ones(3), num_samples=1)
    assert torch.equal(server.flat, before["flat"]) and server.version == before["version"]


def test_proximal_term_is_the_oracles() -> None:
    model = torch.nn.Linear(3, 2).double()
    start = [torch.randn_like(p) for p in model.parameters()]
    (model(torch.ones(1, 3, dtype=torch.float64)) ** 2).sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    fastagg.clients.add_proximal_gradient_(model, start, mu=0.7)
    for p, g, x_t in zip(model.parameters(), plain, start, strict=True):
        wanted = oracle.fedprox_gradient(g.numpy(), p.detach().numpy(), x_t.numpy(), 0.7)
        np.testing.assert_allclose(p.grad.numpy(), wanted)


def test_a_gradient_is_refused_where_a_delta_is_wanted() -> None:
    server = fastagg.FedBuff(torch.zeros(4), buffer_size=1)
    server.dispatch(0)
    with pytest.raises(ConfigError, match="'delta'"):
        server.receive(0, torch.ones(4), kind="gradient")
    assert server.receive(0, torch.ones(4), kind="delta").applied
