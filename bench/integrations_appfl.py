"""Compares APPFL's FedAsync and FedBuff aggregators with fastagg's. Ten clients upload a model and get the next one.

APPFL runs with ``optimize_memory=False``. Its default runs Python's garbage collector at every call, which would make
fastagg look better.

    python bench/integrations.py appfl
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from appfl.algorithm.aggregator import FedAsyncAggregator, FedBuffAggregator
from integrations_common import CLIENTS, compare, model, peak_of, peaks
from omegaconf import OmegaConf
from results import Row

from fastagg.integrations.appfl import Aggregator

logging.getLogger("fastagg").setLevel(logging.ERROR)


def uploads() -> list[dict[str, torch.Tensor]]:
    """Return one upload more than there are clients, so that no client sends the same numbers twice in a row. fastagg
    would take that for a repeated message."""
    return [model(1 + k) for k in range(CLIENTS + 1)]


def driven(aggregator: Any, replies: list[dict[str, torch.Tensor]], version: Callable[[], int]) -> Callable[[], object]:
    for client in range(CLIENTS):
        aggregator.get_parameters(client_id=client)
    turn = 0

    def run() -> None:
        nonlocal turn
        turn, before = turn + 1, version()
        for client in range(CLIENTS):
            aggregator.aggregate(client, replies[(turn + client) % len(replies)])
            aggregator.get_parameters(client_id=client)
        if version() == before:
            raise AssertionError("ten uploads and no step: they were not counted")

    return run


def theirs(kind: type, **settings: object) -> Callable[[], object]:
    config = {"optimize_memory": False, "staleness_fn": "constant", "alpha": 0.5, "num_clients": 1, **settings}
    aggregator = kind(Net(model(0)), OmegaConf.create(config), logging.getLogger("theirs"))
    return driven(aggregator, uploads(), lambda: aggregator.global_step)


def ours(algorithm: str, **settings: object) -> Callable[[], object]:
    aggregator = Aggregator(Net(model(0)), {"algorithm": algorithm, "settings": settings})
    return driven(aggregator, uploads(), lambda: aggregator.server.version)


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


def report(rounds: int) -> list[Row]:
    """Run the comparison."""
    memory = peaks(__file__, list(CANDIDATES))
    runs = {name: make() for name, make in CANDIDATES.items()}
    for run in runs.values():
        run()
    return compare("APPFL", runs, rounds, memory)


if __name__ == "__main__":  # one candidate's memory, in a process of its own
    peak_of(CANDIDATES[sys.argv[1]]())
