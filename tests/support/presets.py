"""Every preset with its variants, by name, and a fixed run of calls for it.

Inputs are computed from whole numbers only (splitmix64), so that they are the same with every version of every library.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import fastagg

CLIENTS = 3
ROUND = 3  # clients per round of the synchronous rules

OFTEN: dict[str, Any] = {"answers_per_step": None}  # in the run of calls a client may answer twice in a step

Make = Callable[..., fastagg.Server]


def _of(name: str, **settings: Any) -> Make:
    def make(params: Any, **more: Any) -> fastagg.Server:
        if twice := sorted(settings.keys() & more.keys()):
            raise TypeError(f"{name}: {', '.join(twice)} are given already")
        return getattr(fastagg, name)(params, **{**OFTEN, **settings, **more})  # type: ignore[no-any-return]

    return make


def _robust(rule: Any, **settings: Any) -> Make:
    def make(params: Any, **more: Any) -> fastagg.Server:
        along, steps = fastagg.Robust(rule, 3, **settings), fastagg.AMSGrad(0.01)
        return fastagg.Server(params, along, steps, fastagg.Polynomial(0.5), **{**OFTEN, **more})

    return make


_CACHES = ("fp32", "bf16", "int8", "int4")
_ROUNDS = {"clients_per_round": ROUND, "weighting": "uniform"}
_ADAPTIVE = {
    "FADAS": {"lr": 0.01, "buffer_size": 2, "delay_threshold": 2},
    "FedAC": {"lr": 0.01, "buffer_size": 2},
    "FedAvgM": _ROUNDS,
    "FedAdam": _ROUNDS,
    "FedYogi": _ROUNDS,
    "FedAdagrad": {**_ROUNDS, "beta": 0.5},
    "FedAMS": {**_ROUNDS, "bias_correction": True},
}

_EXTENDED = {"weight_decay": 0.125, "eps_root": 1e-6, "initial": 1e-6, "bias_correction": True}

# FedEcho is left out: between its steps a model is trained with torch's matrix products, whose bits depend on torch.
PRESETS: dict[str, Make] = {
    "FedBuff": _of("FedBuff", buffer_size=3),
    "FedBuff, one": _of("FedBuff", buffer_size=1, lr=0.5),
    "FedBuff, clipped, by samples": _of("FedBuff", buffer_size=3, clip_norm=0.01, weighting="samples"),
    "FedBuff, by weights, AdamW's decay": _of(
        "FedBuff",
        buffer_size=3,
        staleness=fastagg.Polynomial(0.5),
        normalize="weights",
        weighting="samples",
        weight_decay=0.125,
        decoupled_weight_decay=True,
    ),
    "FedAsync, by shares": _of("FedAsync", policy="hinge", b=1, normalize=9, weighting="samples"),
    "FADAS, extended": _of("FADAS", lr=0.01, buffer_size=2, **_EXTENDED),
    "FADAS, extended, in 8 bits": _of("FADAS", lr=0.01, buffer_size=2, **_EXTENDED, moments="8bit"),
    "ACE, int8, SGD with decay": _of(
        "ACE", lr=0.1, num_clients=CLIENTS, cache="int8", optimizer=fastagg.SGD(0.1, weight_decay=0.125)
    ),
    "FADAS, reciprocal": _of("FADAS", lr=0.7, buffer_size=2, delay_threshold=1, delay_rule="reciprocal"),
    "FADAS, corrected": _of("FADAS", lr=0.01, buffer_size=2, bias_correction=True),
    "FedAsync, constant": _of("FedAsync", policy="constant"),
    "FedAsync, hinge": _of("FedAsync", policy="hinge", b=1),
    "FedAsync, polynomial": _of("FedAsync", policy="polynomial"),
    "AsyncFedED": _of("AsyncFedED", lam=1.0, eps=1.0),
    "ASGD": _of("ASGD", lr=0.1),
    **{
        f"DelayAdaptiveASGD, {rule}": _of("DelayAdaptiveASGD", lr=0.1, delay_threshold=1, stale=rule, **more)
        for rule, more in {"scaled": {}, "drop": {}, "lipschitz": {"lipschitz": 1.7}}.items()
    },
    "ACE, direct": _of("ACE", lr=0.1, num_clients=CLIENTS, mode="direct"),
    "ACE, client": _of("ACE", lr=0.1, num_clients=CLIENTS, mode="client"),
    "ACE, partial, int8, by samples": _of(
        "ACE", lr=0.1, num_clients=CLIENTS, cache="int8", warmup="partial", weighting="samples"
    ),
    "ACE, of five": _of(
        "ACE", lr=0.1, num_clients=5, warmup="partial"
    ),  # every block of the sum has its turn within 20 arrivals
    "ACE, AMSGrad in 8 bits": _of(
        "ACE", lr=0.1, num_clients=CLIENTS, cache="int4", optimizer=fastagg.AMSGrad(0.01, moments="8bit")
    ),
    **{f"ACE, {cache}": _of("ACE", lr=0.1, num_clients=CLIENTS, cache=cache) for cache in _CACHES},
    **{
        f"ACED, {cache}": _of("ACED", lr=0.1, num_clients=CLIENTS, cache=cache, max_delay=1, warmup="partial")
        for cache in _CACHES
    },
    "ACED, gradient": _of("ACED", lr=0.1, num_clients=CLIENTS, max_delay=2, freshness="gradient"),
    **{f"CA2FL, {cache}": _of("CA2FL", num_clients=CLIENTS, buffer_size=2, cache=cache) for cache in _CACHES},
    "CA2FL, latest, int8": _of("CA2FL", num_clients=CLIENTS, buffer_size=3, cache="int8", repeat="latest"),
    "CA2FL, one": _of("CA2FL", num_clients=CLIENTS, buffer_size=1, cache="int4"),
    "FedAvg": _of("FedAvg", clients_per_round=ROUND),
    "FedAvg, deterministic": _of("FedAvg", clients_per_round=ROUND, deterministic=True),
    "FedProx": _of("FedProx", clients_per_round=ROUND),
    "DiLoCo": _of("DiLoCo", **_ROUNDS),
    "DiLoCo, moments in 8 bits, with decay": _of("DiLoCo", **_ROUNDS, moments="8bit", weight_decay=0.125),
    "AsyncDiLoCo": _of("AsyncDiLoCo", period=3, fastest_steps=7),
    "HeLoCo": _of("HeLoCo", rho=0.5),
    "HeLoCo, clipped, with decay": _of(
        "HeLoCo", lr=0.3, k_d=0.3, clip_norm=0.01, weight_decay=0.125, staleness=fastagg.CosineGate(0.1, 9)
    ),
    "DecoupledDiLoCo": _of("DecoupledDiLoCo", buffer_size=2),
    "DiLoCo, model in bf16": _of("DiLoCo", **_ROUNDS, model_dtype="bf16"),
    "HeLoCo, model in bf16": _of("HeLoCo", rho=0.5, model_dtype="bf16"),
    "FADAS, extended, in 8 bits, model in bf16": _of(
        "FADAS", lr=0.01, buffer_size=2, **_EXTENDED, moments="8bit", model_dtype="bf16"
    ),
    "RingmasterASGD": _of("RingmasterASGD", lr=0.1, delay_threshold=2),
    **{name: _of(name, **settings) for name, settings in _ADAPTIVE.items()},
    "FedMedian": _of("FedMedian", clients_per_round=ROUND),
    "FedMedian, deterministic": _of("FedMedian", clients_per_round=ROUND, deterministic=True),
    "FedTrimmedAvg": _of("FedTrimmedAvg", clients_per_round=ROUND, beta=0.4),
    "Krum": _of("Krum", clients_per_round=ROUND),
    "MultiKrum": _of("MultiKrum", clients_per_round=ROUND, num_nodes_to_select=2),
    **{
        f"Robust, {rule}, AMSGrad": _robust(rule, **more)
        for rule, more in {
            "mean_around_median": {"f": 1},
            "geometric_median": {},
            "centered_clip": {"radius": 0.01},
        }.items()
    },
    **{f"{name}, moments in 8 bits": _of(name, **settings, moments="8bit") for name, settings in _ADAPTIVE.items()},
}
SYNCHRONOUS = (
    "DiLoCo", "FedAvg", "FedProx", "FedAdam", "FedYogi", "FedAdagrad", "FedAMS", "FedMedian", "FedTrimmedAvg", "Krum",
    "MultiKrum",
)  # fmt: skip


@lru_cache(maxsize=256)
def numbers(seed: int, size: int, shift: int) -> Tensor:
    """Return whole numbers of up to 24 bits divided by a power of two from 2^shift to 2^(shift + 7): exact in fp32."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, size + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    whole = (z >> np.uint64(40)).astype(np.int64) - (1 << 23)
    power = (z & np.uint64(7)).astype(np.int64) + shift
    return torch.from_numpy(np.ldexp(whole.astype(np.float64), -power).astype(np.float32))


class Call(NamedTuple):
    """One call: a task for a client, or its answer, the ``number``-th update of the run."""

    client: int
    number: int | None = None


def calls(name: str, arrivals: int) -> Iterator[Call]:
    """Yield rounds for a synchronous preset. Otherwise some clients answer more often than others, so delays vary."""
    if name.startswith(SYNCHRONOUS):
        for first in range(0, arrivals, ROUND):
            clients = [(first + k) % CLIENTS for k in range(ROUND)]
            yield from (Call(client) for client in sorted(clients))
            yield from (Call(client, first + k) for k, client in enumerate(clients[::-1]))
        return
    yield from (Call(client) for client in range(CLIENTS))
    for number in range(arrivals):
        client = (0, 1, 2, 0, 0, 1, 0, 0, 1, 1, 0, 2)[number % 12]
        yield Call(client, number)
        yield Call(client)


@lru_cache(maxsize=256)
def update(number: int, size: int) -> Tensor:
    """Return the ``number``-th update of a run. Every fifth one is bf16, and some are much smaller than others."""
    values = numbers(number + 1, size, 24 + 4 * (number % 3))
    return values.to(torch.bfloat16) if number % 5 == 4 else values


def model(size: int) -> Tensor:
    """Return the first model of a run."""
    return numbers(0, size, 22)


def tensors(server: fastagg.Server) -> dict[str, Tensor]:
    """Return the result of a run: the model, moments, sums, and the rows with their scales."""
    state = server.state_dict(copy=False)
    held = {"flat": state["flat"], **{f"moment {key}": value for key, value in sorted(state["moments"].items())}}
    for key in ("acc", "sum", "control", "change"):
        if isinstance(value := state["direction"].get(key), Tensor):
            held[key] = value
    if "cache" in state["direction"]:
        cache = state["direction"]["cache"]
        held |= {"rows": cache["data"], "scales": cache["scales"]}
    return held
