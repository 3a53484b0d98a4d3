"""Presets are the parts that docs/algorithms.md has for them, with the settings that they are given."""

from typing import Any

import pytest
import torch

import fastagg
from fastagg import (
    SGD,
    ActiveSet,
    Adagrad,
    Adam,
    Aligned,
    AllClients,
    AMSGrad,
    Buffer,
    Calibrated,
    Cohort,
    Constant,
    CosineBuffer,
    Cutoff,
    DelayAdaptive,
    DelayedNesterov,
    Differences,
    Euclidean,
    Hinge,
    Lookahead,
    Mixing,
    Momentum,
    Nesterov,
    Polynomial,
    Robust,
    Single,
    Yogi,
)

SECOND: dict[str, Any] = {"lr": 0.2, "betas": (0.5, 0.8), "eps": 0.1}
N, ROUND = {"lr": 0.2, "num_clients": 3}, {"clients_per_round": 4}
ROBUST = {"size": 4, "synchronous": True}
PARTS: list[tuple[str, dict[str, Any], Any, Any, Any, str]] = [
    ("FADAS", {**SECOND, "buffer_size": 2, "delay_threshold": 3, "bias_correction": True}, Buffer(2),
     AMSGrad(**SECOND, bias_correction=True), DelayAdaptive(3, "scaled"), "uniform"),
    ("FADAS", {"lr": 0.2, "delay_threshold": None}, Buffer(5), AMSGrad(0.2), Constant(), "uniform"),
    ("FedBuff", {"lr": 0.2, "buffer_size": 2, "staleness": Hinge()}, Buffer(2), SGD(0.2), Hinge(), "uniform"),
    ("CA2FL", {**N, "buffer_size": 2, "repeat": "latest"}, Calibrated(3, 2, "fp32", "latest"), SGD(0.2), Constant(),
     "uniform"),
    ("FedAC", {**SECOND, "buffer_size": 2}, CosineBuffer(2), Lookahead(**SECOND), Constant(), "uniform"),
    ("FedAsync", {"alpha": 0.2, "policy": "constant"}, Mixing(), SGD(0.2), Constant(), "uniform"),
    ("FedAsync", {"alpha": 0.2, "policy": "hinge", "a": 2.0, "b": 1.0}, Mixing(), SGD(0.2), Hinge(2.0, 1.0), "uniform"),
    ("FedAsync", {"alpha": 0.2, "policy": "polynomial", "a": 2.0, "normalize": 9}, Mixing(normalize=9), SGD(0.2),
     Polynomial(2.0), "uniform"),
    ("AsyncFedED", {"lam": 0.6, "eps": 0.9, "gamma_bar": 2.0, "kappa": 0.5, "local_steps": 7}, Single(), SGD(1.0),
     Euclidean(0.6, 0.9, 2.0, 0.5, 7), "uniform"),
    ("ASGD", {"lr": 0.2}, Single(kind="gradient"), SGD(0.2), Constant(), "uniform"),
    ("DelayAdaptiveASGD", {"lr": 0.2, "delay_threshold": 3, "stale": "drop"}, Single(kind="gradient"), SGD(0.2),
     DelayAdaptive(3, "drop"), "uniform"),
    ("DelayAdaptiveASGD", {"lr": 0.2, "delay_threshold": 3, "stale": "scaled"}, Single(kind="gradient"), SGD(0.2),
     DelayAdaptive(3, "threshold"), "uniform"),
    ("ACE", N, AllClients(3), SGD(0.2), Constant(), "uniform"),
    ("ACE", {**N, "mode": "client", "warmup": "partial"}, Differences(3, "partial"), SGD(0.2), Constant(), "uniform"),
    ("ACED", {**N, "max_delay": 4, "cache": "int8", "freshness": "gradient"},
     ActiveSet(3, "int8", max_delay=4, freshness="gradient"), SGD(0.2), Constant(), "uniform"),
    ("FedAvg", {**ROUND, "lr": 0.2}, Cohort(4), SGD(0.2), Constant(), "samples"),
    ("FedProx", ROUND, Cohort(4), SGD(1.0), Constant(), "samples"),
    ("DiLoCo", {**ROUND, "lr": 0.2, "momentum": 0.5}, Cohort(4), Nesterov(0.2, 0.5), Constant(), "uniform"),
    ("AsyncDiLoCo", {"lr": 0.2, "momentum": 0.5, "period": 3}, Single(), DelayedNesterov(0.2, 0.5, 3), Constant(),
     "uniform"),
    ("HeLoCo", {"lr": 0.2, "momentum": 0.5, "rho": 0.4, "c_ok": 0.1}, Aligned(rho=0.4, c_ok=0.1),
     Nesterov(0.2, 0.5, 0.5, look_ahead=True), Constant(), "uniform"),
    ("DecoupledDiLoCo", {"buffer_size": 4, "at_least": 2, "grace": 5.0, "lr": 0.2},
     Buffer(4, at_least=2, grace=5.0), Nesterov(0.2, 0.9), Constant(), "tokens"),
    ("RingmasterASGD", {"lr": 0.2, "delay_threshold": 3}, Single(kind="gradient"), SGD(0.2), Cutoff(3), "uniform"),
    ("FedAvgM", {**ROUND, "lr": 0.2, "beta": 0.5}, Cohort(4), Momentum(0.2, 0.5), Constant(), "uniform"),
    ("FedAdam", {**ROUND, **SECOND}, Cohort(4), Adam(**SECOND), Constant(), "uniform"),
    ("FedYogi", {**ROUND, **SECOND}, Cohort(4), Yogi(**SECOND), Constant(), "uniform"),
    ("FedAMS", {**ROUND, **SECOND}, Cohort(4), AMSGrad(**SECOND), Constant(), "uniform"),
    ("FedAdagrad", {**ROUND, "lr": 0.2, "beta": 0.5, "eps": 0.1}, Cohort(4), Adagrad(0.2, 0.5, 0.1), Constant(),
     "uniform"),
    ("FedMedian", ROUND, Robust("median", **ROBUST), SGD(1.0), Constant(), "uniform"),
    ("FedTrimmedAvg", {**ROUND, "beta": 0.3}, Robust("trimmed", trim=0.3, **ROBUST), SGD(1.0), Constant(), "uniform"),
    ("Krum", ROUND, Robust("krum", **ROBUST), SGD(1.0), Constant(), "uniform"),
    ("MultiKrum", {**ROUND, "num_nodes_to_select": 2}, Robust("multi_krum", keep=2, **ROBUST), SGD(1.0), Constant(),
     "uniform"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "how", "direction", "optimizer", "staleness", "weighting"), PARTS)
def test_a_preset_is_its_parts(
    name: str, how: dict[str, Any], direction: Any, optimizer: Any, staleness: Any, weighting: str
) -> None:
    server = getattr(fastagg, name)(torch.zeros(2), **how)
    parts = server.direction, server.optimizer, server.staleness, server.weighting
    assert parts == (direction, optimizer, staleness, weighting)


def test_every_preset_is_here() -> None:
    assert {name for name, *_ in PARTS} == fastagg.registry.presets().keys() - {"FedEcho"}
