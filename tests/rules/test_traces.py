"""Servers against an independent NumPy float64 transcription of the papers' pseudo-code, over random event traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import oracle
from support.properties import examples
from support.traces import Case, Updates, cases, drive

import fastagg

pytestmark = pytest.mark.kernel

Build = Callable[[Any], Any]
SHAPES = ("normal", "sparse", "zero", "tiny", "wide")
CALM = ("normal", "sparse", "zero")


def agree(ours: Any, theirs: Any, case: Case, shapes: tuple[str, ...] = SHAPES) -> None:
    """Same decisions at every event, same model up to float32 rounding."""
    got = drive(ours, case.trace, Updates(case.size, shapes), snapshot=lambda s: s.flat.double().numpy().copy())
    want = drive(theirs, case.trace, Updates(case.size, shapes), snapshot=lambda s: s.x.copy())
    scale = 1.0
    for a, b in zip(got, want, strict=True):
        assert (a.event, a.sent_version, a.applied, a.version, a.delay) == (
            b.event, b.sent_version, b.applied, b.version, b.delay)  # fmt: skip
        assert a.step_size == pytest.approx(b.step_size)
        # The models drift apart by rounding, a few ulp of the largest number met so far per event.
        scale = max(scale, np.abs(b.x).max(initial=0.0))
        if b.applied is not None:
            scale = max(scale, float(np.abs(Updates(case.size, shapes)(b.event)).max(initial=0.0)))
        np.testing.assert_allclose(a.x, b.x, rtol=0, atol=2e-6 * scale * (1 + len(got) / 10))


common = st.fixed_dictionaries(
    {}, optional={"clip_norm": st.sampled_from([0.5, 3.0]), "weighting": st.sampled_from(["uniform", "samples"])}
)


@given(case=cases(), common=common, m=st.integers(1, 4), lr=st.sampled_from([1.0, 0.3]))
def test_fedbuff(case: Case, common: dict[str, Any], m: int, lr: float) -> None:
    agree(
        fastagg.FedBuff(case.x0, lr=lr, buffer_size=m, **common),
        oracle.FedBuff(case.x0, lr=lr, buffer_size=m, **common),
        case,
    )


@given(
    case=cases(),
    common=common,
    settings=st.fixed_dictionaries(
        {
            "lr": st.sampled_from([1e-3, 0.1]),
            "buffer_size": st.integers(1, 4),
            "betas": st.sampled_from([(0.9, 0.99), (0.0, 0.0), (0.6, 0.9)]),
            "eps": st.just(0.03),  # as ADAPTIVE below
            "delay_threshold": st.sampled_from([None, 0, 1, 3]),
            "delay_rule": st.sampled_from(["scaled", "reciprocal"]),
            "bias_correction": st.booleans(),
        }
    ),
)
@examples(200)
def test_fadas(case: Case, common: dict[str, Any], settings: dict[str, Any]) -> None:
    agree(fastagg.FADAS(case.x0, **settings, **common), oracle.FADAS(case.x0, **settings, **common), case)


@given(
    case=cases(),
    common=common,
    alpha=st.sampled_from([1.0, 0.6, 0.1]),
    policy=st.sampled_from(
        [
            ("constant", {}),
            ("hinge", {"a": 10.0, "b": 4.0}),
            ("hinge", {"a": 0.5, "b": 1.0}),
            ("polynomial", {"a": 0.5}),
        ]
    ),
)
def test_fedasync(case: Case, common: dict[str, Any], alpha: float, policy: tuple[str, dict[str, float]]) -> None:
    name, settings = policy
    agree(
        fastagg.FedAsync(case.x0, alpha=alpha, policy=name, **settings, **common),
        oracle.FedAsync(case.x0, alpha=alpha, policy=name, **settings, **common),
        case,
    )


# A large eps: where updates cancel, Adam would blow their rounding errors up to steps of the learning rate.
ADAPTIVE = {"betas": (0.5, 0.9), "eps": 0.03}
OPTIMIZERS: dict[str, tuple[Build, Build]] = {
    "sgd": (lambda: fastagg.SGD(0.3), lambda: oracle.SGD(0.3)),
    "momentum": (lambda: fastagg.Momentum(0.3, 0.8), lambda: oracle.Momentum(0.3, 0.8)),
    "adam": (lambda: fastagg.Adam(0.01, **ADAPTIVE), lambda: oracle.Adam(0.01, **ADAPTIVE)),
    "amsgrad": (lambda: fastagg.AMSGrad(0.01, **ADAPTIVE), lambda: oracle.AMSGrad(0.01, **ADAPTIVE)),
    "yogi": (lambda: fastagg.Yogi(0.01, **ADAPTIVE), lambda: oracle.Yogi(0.01, **ADAPTIVE)),
    "lookahead": (lambda: fastagg.Lookahead(0.01, **ADAPTIVE), lambda: oracle.FedACOptimizer(0.01, **ADAPTIVE)),
    "adagrad": (lambda: fastagg.Adagrad(0.01, 0.5, 0.03), lambda: oracle.Adagrad(0.01, 0.5, 0.03)),
    "corrected": (
        lambda: fastagg.AMSGrad(0.01, **ADAPTIVE, bias_correction=True),
        lambda: oracle.AMSGrad(0.01, **ADAPTIVE, bias_correction=True),
    ),
}
# What every optimizer has, and what those with a second moment have.
DECAYS = ({}, {"weight_decay": 0.3}, {"weight_decay": 0.3, "decoupled_weight_decay": True})
SECONDS = ({}, {"eps_root": 0.02}, {"initial": 0.04}, {"eps_root": 0.001, "initial": 0.0025})
DIRECTIONS: dict[str, tuple[Build, Build]] = {
    "single": (fastagg.Single, oracle.Single),
    "mixing": (fastagg.Mixing, oracle.StaleModel),
    "share": (lambda: fastagg.Mixing(normalize=1500), lambda: oracle.StaleModel(1500)),
    "buffer": (lambda: fastagg.Buffer(3), lambda: oracle.Buffer(3)),
    "weights": (lambda: fastagg.Buffer(3, normalize="weights"), lambda: oracle.Buffer(3, normalize="weights")),
    "clients": (lambda: fastagg.Buffer(3, normalize=7), lambda: oracle.Buffer(3, normalize=7)),
}
POLICIES: dict[str, tuple[Build, Build]] = {
    "constant": (fastagg.Constant, oracle.Constant),
    "hinge": (lambda: fastagg.Hinge(2.0, 1.0), lambda: oracle.Hinge(2.0, 1.0)),
    "polynomial": (lambda: fastagg.Polynomial(0.5), lambda: oracle.Polynomial(0.5)),
    "scaled": (lambda: fastagg.DelayAdaptive(1), lambda: oracle.DelayAdaptive(1)),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("policy", POLICIES)
@given(
    case=cases(max_length=15, size=st.sampled_from([1, 17, 1025])),
    decay=st.sampled_from(DECAYS),
    second=st.sampled_from(SECONDS),
    weighting=st.sampled_from(["uniform", "samples"]),
)
@examples(15)
def test_any_direction_with_any_optimizer_and_any_policy(
    optimizer: str, direction: str, policy: str, case: Case, decay: Any, second: Any, weighting: str
) -> None:
    parts = (DIRECTIONS[direction], OPTIMIZERS[optimizer], POLICIES[policy])
    along, steps, stale = (part[0]() for part in parts)
    more = {**decay, **(second if hasattr(steps, "eps_root") else {})}
    ours = fastagg.Server(case.x0, along, replace(steps, **more), stale, weighting=weighting)
    along, steps, stale = (part[1]() for part in parts)
    theirs = oracle.Composed(case.x0, along, steps.extended(**more), stale, weighting=weighting)
    agree(ours, theirs, case, ("normal", "sparse", "zero"))


@given(case=cases(max_length=20), cut=st.integers(0, 40), policy=st.sampled_from(["fadas", "fedasync"]))
def test_resuming_from_a_checkpoint_is_never_having_stopped(case: Case, cut: int, policy: str) -> None:
    def build() -> fastagg.Server:
        if policy == "fadas":
            return fastagg.FADAS(case.x0, lr=0.1, buffer_size=3, delay_threshold=1)
        return fastagg.FedAsync(case.x0, alpha=0.5, policy="polynomial")

    whole = build()
    drive(whole, case.trace, Updates(case.size))
    first = build()
    resuming = Resuming(first, build, cut)
    drive(resuming, case.trace, Updates(case.size))
    assert torch.equal(resuming.server.flat, whole.flat)
    assert resuming.server.version == whole.version


class Resuming:
    """A server that is replaced, after `cut` calls, by a new one loaded from its state."""

    def __init__(self, server: fastagg.Server, build: Build, cut: int) -> None:
        self.server, self.build, self.left = server, build, cut

    def _tick(self) -> None:
        if self.left == 0:
            state = self.server.state_dict()
            self.server = self.build()
            self.server.load_state_dict(state)
        self.left -= 1

    def dispatch(self, *arguments: Any, **keywords: Any) -> Any:
        self._tick()
        return self.server.dispatch(*arguments, **keywords)

    def receive(self, *arguments: Any, **keywords: Any) -> Any:
        self._tick()
        return self.server.receive(*arguments, **keywords)


# Rule, ours and theirs, for a model with BatchNorm; theirs takes the buffers beside the update.
WITH_BUFFERS: dict[str, tuple[Build, Build]] = {
    "fedbuff": (
        lambda c, x, **k: fastagg.FedBuff(x, buffer_size=2, **k),
        lambda c, **k: oracle.FedBuff(c.x0, buffer_size=2, **k),
    ),
    "fadas": (
        lambda c, x, **k: fastagg.FADAS(x, lr=0.01, buffer_size=3, delay_threshold=1, **k),
        lambda c, **k: oracle.FADAS(c.x0, lr=0.01, buffer_size=3, delay_threshold=1, **k),
    ),
    "fedasync": (
        lambda c, x, **k: fastagg.FedAsync(x, policy="polynomial", a=0.5, **k),
        lambda c, **k: oracle.FedAsync(c.x0, policy="polynomial", a=0.5, **k),
    ),
    "asgd": (
        lambda c, x, **k: fastagg.DelayAdaptiveASGD(x, lr=0.1, delay_threshold=1, stale="drop", **k),
        lambda c, **k: oracle.DelayAdaptiveASGD(c.x0, lr=0.1, delay_threshold=1, stale="drop", **k),
    ),
    "ace": (
        lambda c, x, **k: fastagg.ACE(x, lr=0.1, num_clients=c.num_clients, **k),
        lambda c, **k: oracle.ACE(c.x0, lr=0.1, num_clients=c.num_clients, **k),
    ),
    "aced": (
        lambda c, x, **k: fastagg.ACED(x, lr=0.1, num_clients=c.num_clients, max_delay=1, freshness="gradient", **k),
        lambda c, **k: oracle.ACED(c.x0, lr=0.1, num_clients=c.num_clients, max_delay=1, freshness="gradient", **k),
    ),
    "ca2fl": (
        lambda c, x, **k: fastagg.CA2FL(x, num_clients=c.num_clients, buffer_size=2, **k),
        lambda c, **k: oracle.CA2FL(c.x0, num_clients=c.num_clients, buffer_size=2, **k),
    ),
    "fedac": (
        lambda c, x, **k: fastagg.FedAC(x, lr=0.01, buffer_size=2, eps=0.03, **k),
        lambda c, **k: oracle.FedAC(c.x0, lr=0.01, buffer_size=2, eps=0.03, **k),
    ),
}


@pytest.mark.parametrize("rule", WITH_BUFFERS)
@given(case=cases(max_length=20, size=st.just(6)), mode=st.sampled_from(["mean", "latest", "keep"]))
@examples(40)
def test_batchnorm_buffers(rule: str, case: Case, mode: str) -> None:
    """Statistics and counters follow the clients' in each step and never enter the parameters' step."""
    names = {"running_mean": np.zeros(2), "running_var": np.ones(2), "num_batches_tracked": np.array(0)}
    start = {
        "weight": torch.from_numpy(case.x0.copy()),
        "bn.running_mean": torch.zeros(2),
        "bn.running_var": torch.ones(2),
        "bn.num_batches_tracked": torch.tensor(0),
    }

    def client_buffers(event: Any) -> dict[str, Any]:
        rng = np.random.default_rng(event.seed)
        mean, var = rng.standard_normal(2).astype(np.float32), rng.random(2).astype(np.float32)
        return {"running_mean": mean, "running_var": var, "num_batches_tracked": np.array(int(rng.integers(100)))}

    def update(event: Any) -> dict[str, Any]:
        flat = torch.from_numpy(Updates(6, CALM)(event))
        return {"weight": flat, **{f"bn.{k}": torch.as_tensor(v) for k, v in client_buffers(event).items()}}

    ours_of, theirs_of = WITH_BUFFERS[rule]
    ours, theirs = ours_of(case, start, buffers=mode), theirs_of(case, buffers=names, buffer_rule=mode)
    drive(ours, case.trace, update)
    drive(theirs, case.trace, Updates(6, CALM), make_buffers=client_buffers)
    np.testing.assert_allclose(ours.flat.numpy(), theirs.x, rtol=1e-4, atol=1e-4 * (1 + np.abs(theirs.x).max()))
    for name, expected in theirs.buffers.items():
        np.testing.assert_allclose(ours.parameters()[f"bn.{name}"].numpy(), expected, rtol=1e-5, atol=1e-6)
