"""Compares NVIDIA FLARE's running sum in torch with fastagg's aggregator: the aggregation call only, ten replies.

The replies are ten different ones, as in a federation. A single reply read ten times would stay in the caches.

python bench/integrations_nvflare.py [--rounds 9]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from integrations_common import CLIENTS, compare, model, peak_of, peaks
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from results import Row

from fastagg.integrations.nvflare import Aggregator


def theirs(kind: ParamsType) -> Callable[[], object]:
    """Return what FLARE's FedAvg does with each result and at the end of a round."""
    current = FLModel(ParamsType.FULL, model(0))
    replies = _replies(kind)

    def run() -> object:
        helper = WeightedAggregationHelper()
        for client, reply in enumerate(replies):
            helper.add(reply, 5.0, str(client), 0)
        return FLModelUtils.update_model(current, FLModel(kind, helper.get_result()))

    return run


def ours(algorithm: str, kind: ParamsType) -> Callable[[], object]:
    """Return the same through accept_model and aggregate_model."""
    aggregator, number = Aggregator(algorithm), 0
    current = model(0)
    aggregator._traffic.start(current)
    replies = _replies(kind)

    def run() -> object:
        nonlocal number, current
        number += 1
        for client in range(CLIENTS):
            aggregator.sent(str(client), FLModel(ParamsType.FULL, current, current_round=number))
        for client, reply in enumerate(replies):
            meta = {"client_name": str(client), "NUM_STEPS_CURRENT_ROUND": 5}
            aggregator.accept_model(FLModel(kind, dict(reply), current_round=number, meta=meta))
        current = aggregator.aggregate_model().params
        return current

    return run


def _replies(kind: ParamsType) -> list[dict[str, torch.Tensor]]:
    return [model(1 + client, 1.0 if kind == ParamsType.FULL else 0.01) for client in range(CLIENTS)]


CANDIDATES = {
    "FLARE, whole models": lambda: theirs(ParamsType.FULL),
    "FLARE, differences": lambda: theirs(ParamsType.DIFF),
    "fastagg FedAvg, whole models": lambda: ours("FedAvg", ParamsType.FULL),
    "fastagg FedAvg, differences": lambda: ours("FedAvg", ParamsType.DIFF),
    "fastagg FedAMS, differences": lambda: ours("FedAMS", ParamsType.DIFF),
}


def report(rounds: int) -> list[Row]:
    """Run the comparison."""
    memory = peaks(__file__, list(CANDIDATES))
    runs = {name: make() for name, make in CANDIDATES.items()}
    for run in runs.values():
        run()
    return compare("FLARE", runs, rounds, memory)


if __name__ == "__main__":  # one candidate's memory, in a process of its own
    peak_of(CANDIDATES[sys.argv[1]]())
