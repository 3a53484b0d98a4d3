"""APPFL's aggregation call alone: its FedAsync and FedBuff beside fastagg's, ten clients' models in turn.

APPFL runs with ``optimize_memory=False``: its default collects Python's garbage at every call, which would flatter us.

    python bench/integrations.py appfl
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import torch
from appfl.algorithm.aggregator import FedAsyncAggregator, FedBuffAggregator
from integrations_common import CLIENTS, compare, model, peak_of, peaks
from omegaconf import OmegaConf

from fastagg.integrations.appfl import Aggregator

logging.getLogger("fastagg").setLevel(logging.ERROR)


def uploads() -> list[dict[str, torch.Tensor]]:
    """Two models, sent in turn: ten would be all that a machine's memory holds."""
    return [model(1), model(2)]


def driven(aggregator: object, replies: list[dict[str, torch.Tensor]]) -> Callable[[], object]:
    for client in range(CLIENTS):
        aggregator.get_parameters(client_id=client)
    turn = 0

    def run() -> None:
        nonlocal turn
        for client in range(CLIENTS):
            turn += 1
            aggregator.aggregate(client, replies[(turn + client) % 2])

    return run


def theirs(kind: type, **settings: object) -> Callable[[], object]:
    config = {"optimize_memory": False, "staleness_fn": "constant", "alpha": 0.5, "num_clients": 1, **settings}
    aggregator = kind(Net(model(0)), OmegaConf.create(config), logging.getLogger("theirs"))
    return driven(aggregator, uploads())


def ours(algorithm: str, **settings: object) -> Callable[[], object]:
    aggregator = Aggregator(Net(model(0)), {"algorithm": algorithm, "settings": settings})
    return driven(aggregator, uploads())


class Net(torch.nn.Module):
    """Arrays as a module, under their own names."""

    def __init__(self, arrays: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, value in arrays.items():
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(value)
            self.add_module(name.removesuffix(".weight"), layer)


CANDIDATES = {
    "APPFL FedAsync": lambda: theirs(FedAsyncAggregator),
    "APPFL FedBuff": lambda: theirs(FedBuffAggregator, K=10),
    "fastagg FedAsync": lambda: ours("FedAsync", alpha=0.5, policy="constant"),
    "fastagg FedBuff": lambda: ours("FedBuff", buffer_size=10),
    "fastagg FADAS": lambda: ours("FADAS", buffer_size=10),
}


def report(rounds: int) -> str:
    """The comparison, in Markdown."""
    memory = peaks(__file__, list(CANDIDATES))
    return compare({name: make() for name, make in CANDIDATES.items()}, CLIENTS, rounds, memory)


if __name__ == "__main__":  # one candidate's memory, in a process of its own
    peak_of(CANDIDATES[sys.argv[1]]())
