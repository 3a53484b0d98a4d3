"""Rounds of ten arrivals of every preset with kernels of its own on a card, on the device: dispatch to receipt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from problem import Built, Candidate, Case, Problem

import fastagg
from cases.arrival import BUFFER, LR, arrival, heard, in_turn

SIZES = (1_000, 100_000, 10_000_000, 110_000_000)
_BUFFER: dict[str, Any] = {"buffer_size": BUFFER}
_ROUND: dict[str, Any] = {"clients_per_round": BUFFER, "weighting": "uniform"}
_LYING: dict[str, Any] = {"clients_per_round": BUFFER, "num_malicious_nodes": 3}
# FedEcho's step is torch's, and its loss a case of its own.
PRESETS: dict[str, tuple[Callable[..., fastagg.Server], dict[str, Any]]] = {
    "ASGD": (fastagg.ASGD, {"lr": LR}),
    "DelayAdaptiveASGD": (fastagg.DelayAdaptiveASGD, {"lr": LR, "delay_threshold": 5}),
    "RingmasterASGD": (fastagg.RingmasterASGD, {"lr": LR, "delay_threshold": 5}),
    "FedAsync": (fastagg.FedAsync, {"policy": "polynomial"}),
    "AsyncFedED": (fastagg.AsyncFedED, {"lam": 1.0, "eps": 1.0}),
    "FedBuff": (fastagg.FedBuff, _BUFFER),
    "FADAS": (fastagg.FADAS, _BUFFER),
    "FADAS, moments in 8 bits": (fastagg.FADAS, {**_BUFFER, "moments": "8bit"}),
    "FedAC": (fastagg.FedAC, {"lr": LR, **_BUFFER}),
    **{
        f"{make.__name__} {cache}": (make, {**more, "cache": cache})
        for make, more in (
            (fastagg.ACE, {"lr": LR, "warmup": "partial"}),
            (fastagg.ACED, {"lr": LR, "max_delay": BUFFER, "warmup": "partial"}),
            (fastagg.CA2FL, _BUFFER),
        )
        for cache in ("fp32", "int8", "int4")
    },
    **{
        name: (getattr(fastagg, name), _ROUND)
        for name in ("FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedAMS", "DiLoCo")
    },
    "AsyncDiLoCo": (fastagg.AsyncDiLoCo, {"period": BUFFER}),
    "DecoupledDiLoCo": (fastagg.DecoupledDiLoCo, {**_BUFFER, "weighting": "uniform"}),
    "HeLoCo": (fastagg.HeLoCo, {}),
    "FedMedian": (fastagg.FedMedian, {"clients_per_round": BUFFER}),
    "FedTrimmedAvg": (fastagg.FedTrimmedAvg, {"clients_per_round": BUFFER}),
    "Krum": (fastagg.Krum, _LYING),
    "MultiKrum": (fastagg.MultiKrum, {**_LYING, "num_nodes_to_select": 5}),
}


def _built(problem: Problem, name: str) -> Built:
    make, settings = PRESETS[name]
    clients, more = BUFFER, {}
    if "cache" in settings:
        clients = more["num_clients"] = min(BUFFER, heard(problem.size, problem.device))
    model, update = problem.zeros(), problem.update
    parts = name == "HeLoCo"  # it turns tensor by tensor
    server = make(problem.layers(model) if parts else model, **settings, **more)
    run = in_turn(arrival(server, problem.layers(update) if parts else update), clients, BUFFER)
    return Built(run, None, warm=2)


CASES = [
    Case(f"preset {name}", 0, lambda name=name: [Candidate("fastagg", partial(_built, name=name), 6)],  # type: ignore[misc]
         "preset", SIZES, period=BUFFER)
    for name in PRESETS
]  # fmt: skip
