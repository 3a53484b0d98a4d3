"""The rules whose arrivals are measured: fastagg's server and its peers in eager torch, made for one size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import machine
import peers.arrivals as eager
import torch
from torch import Tensor

import fastagg

Receive = Callable[[int, Tensor], None]
LR, BETAS, EPS, BUFFER, CLIENTS = 1e-3, (0.9, 0.99), 1e-8, 10, 100
MOST = 0.35  # of the free memory, for one candidate's rows


@dataclass(frozen=True)
class Rule:
    """One algorithm.

    Attributes:
        make: the server for d parameters.
        peers: name -> the same in torch: (model, clients that take part) -> what takes an arrival.
        at_most: what the issue wants of fastagg's time over the peer's at d = 1,000.
        close: largest relative difference of the models.
    """

    make: Callable[[int], fastagg.Server]
    peers: dict[str, Callable[[eager.Model, int], Receive]]
    at_most: float
    close: float = 1e-4


def heard(size: int) -> int:
    """Clients that take part, of ``CLIENTS``: as many as have room for an fp32 row, here and at the peer."""
    return max(2, min(CLIENTS, int(MOST * machine.available_bytes() / (4 * size))))


def _ace(model: eager.Model, clients: int) -> Receive:
    return eager.ace(model, LR, torch.zeros(clients, model.x.numel()))


def ace(cache: str) -> Callable[[int], fastagg.Server]:
    """ACE over 100 clients with a partial warm-up: rows take memory once they are heard."""
    return lambda size: fastagg.ACE(torch.zeros(size), lr=LR, num_clients=CLIENTS, cache=cache, warmup="partial")


def fedbuff(size: int) -> fastagg.Server:
    return fastagg.FedBuff(torch.zeros(size), lr=1.0, buffer_size=BUFFER)


def asgd(size: int) -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(size), lr=LR)


def fadas(size: int) -> fastagg.Server:
    return fastagg.FADAS(torch.zeros(size), lr=LR, buffer_size=1, betas=BETAS, eps=EPS)


RULES = {
    "FedBuff, M = 10": Rule(fedbuff, {"eager": lambda model, _: eager.fedbuff(model, 1.0, BUFFER)}, 1.5),
    "ASGD": Rule(asgd, {"eager": lambda model, _: eager.asgd(model, LR)}, 1.5),
    "FADAS, M = 1": Rule(
        fadas,
        {
            "eager": lambda model, _: eager.fadas(model, LR, BETAS, EPS),
            "eager, torch's fused AMSGrad": lambda model, _: eager.fadas_fused(model, LR, BETAS, EPS),
        },
        1.0,
    ),
    "ACE fp32": Rule(ace("fp32"), {"eager": _ace}, 1.0),
    "ACE int8": Rule(ace("int8"), {"eager, fp32 rows": _ace}, 1.0, close=0.02),
}
