"""Whole servers of other frameworks, and fastagg's in their place: what becomes of ten clients' replies, per update.

Messages are made before the clock begins. Each framework may need an environment of its own; the others are skipped.
Replies are ten different models: a single one read ten times would stay in the caches. Memory is the peak in addition
to the model and the replies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from problem import Built, Candidate, Case, Problem, Skip, resnet18_shapes
from torch import Tensor

import fastagg

CLIENTS = 10
SHAPES = {f"layer{i}.weight": shape for i, shape in enumerate(resnet18_shapes())}
SIZE = sum(torch.Size(shape).numel() for shape in SHAPES.values())
Model = dict[str, Tensor]


def model(seed: int, scale: float = 1.0) -> Model:
    """Return one model's arrays."""
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) * scale for name, shape in SHAPES.items()}


@cache
def replies(scale: float = 1.0, count: int = CLIENTS) -> list[Model]:
    """Return what the clients send: models, or differences if the scale is small."""
    return [model(1 + client, scale) for client in range(count)]


def flat(arrays: Model) -> Tensor:
    return torch.cat([array.float().reshape(-1) for array in arrays.values()])


class Nodes:
    """The part of Flower's grid that sampling needs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


class Rounds:
    """One of Flower's strategies, or fastagg's in its place, that gets the same replies in every round.

    Args:
        strategy: it.
        start: the first model.
        answers: the replies' models.
    """

    def __init__(self, strategy: Any, start: Model, answers: list[Model]) -> None:
        from flwr.app import MetricRecord, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        from fastagg.integrations.flower import write

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0  # as in a ServerApp
        self.strategy, self.model = strategy, write(start)
        said = [MetricRecord({"num-examples": 100 + k, "loss": float(k)}) for k in range(len(answers))]
        self.replies = [RecordDict({"arrays": write(one), "metrics": m}) for one, m in zip(answers, said, strict=True)]
        self.nodes = Nodes(len(answers))

    def prepare(self) -> None:
        """Do what precedes a call: the round is configured, and the clients have answered."""
        from flwr.app import ConfigRecord, Message

        sent = self.strategy.configure_train(1, self.model, ConfigRecord(), self.nodes)
        sent = sorted(sent, key=lambda message: message.metadata.dst_node_id)
        self.pending = [Message(reply, reply_to=message) for reply, message in zip(self.replies, sent, strict=True)]

    def aggregate(self) -> None:
        """Do only the aggregation call."""
        self.model, metrics = self.strategy.aggregate_train(1, self.pending)
        if metrics is None or "loss" not in metrics:
            raise AssertionError("a reply was left out")
        self.pending = []

    def result(self) -> Tensor:
        from fastagg.integrations.flower import read

        return flat(read(self.model))


def flower(rule: str, whose: str) -> Any:
    """Return a strategy of Flower's or fastagg's."""
    from flwr.serverapp import strategy as theirs

    from fastagg.integrations.flower import SyncStrategy

    logging.getLogger("flwr").setLevel(logging.ERROR)
    if whose == "Flower":
        return theirs.FedAvg() if rule == "FedAvg" else theirs.FedAdam(eta=0.01, beta_1=0.9, beta_2=0.99)
    fedadam = partial(fastagg.FedAdam, lr=0.01, weighting="samples")
    return SyncStrategy(fastagg.FedAvg if rule == "FedAvg" else fedadam)


def _flower(rule: str, whose: str) -> Built:
    rounds = Rounds(flower(rule, whose), model(0), replies())
    # Flower's FedAdam corrects its bias one round ahead, so only FedAvg's models are equal.
    return Built(rounds.aggregate, rounds.result if rule == "FedAvg" else None, before=rounds.prepare)


def _flare(full: bool, rule: str | None, at_once: int = 4) -> Built:
    """FLARE's FedAvg with its running sum in torch; or ``rule`` through accept_model and aggregate_model."""
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    from fastagg.integrations.nvflare import Aggregator

    kind = ParamsType.FULL if full else ParamsType.DIFF
    sent, current = replies(1.0 if full else 0.01), [FLModel(ParamsType.FULL, model(0))]

    def theirs() -> None:
        helper = WeightedAggregationHelper()
        for client, reply in enumerate(sent):
            helper.add(reply, 5.0, str(client), 0)
        current[0] = FLModelUtils.update_model(current[0], FLModel(kind, helper.get_result()))

    if rule is None:
        return Built(theirs, lambda: flat(current[0].params))
    aggregator, number = Aggregator(rule, at_once=at_once), 0
    aggregator._traffic.start(current[0].params)

    def ours() -> None:
        nonlocal number
        number += 1
        for client in range(CLIENTS):
            aggregator.sent(str(client), FLModel(ParamsType.FULL, current[0].params, current_round=number))
        for client, reply in enumerate(sent):
            meta = {"client_name": str(client), "NUM_STEPS_CURRENT_ROUND": 5}
            aggregator.accept_model(FLModel(kind, dict(reply), current_round=number, meta=meta))
        current[0] = aggregator.aggregate_model()

    return Built(ours, lambda: flat(current[0].params))


class Net(torch.nn.Module):
    """Arrays as a module, under their own names."""

    def __init__(self, arrays: Model) -> None:
        super().__init__()
        for name, value in arrays.items():
            layer = torch.nn.Module()
            layer.weight = torch.nn.Parameter(value)
            self.add_module(name.removesuffix(".weight"), layer)


def _appfl(rule: str, whose: str) -> Built:
    """Ten clients upload a model and get the next one. APPFL runs with ``optimize_memory=False``: its default runs
    Python's garbage collector at every call, which would make fastagg look better."""
    from appfl.algorithm import aggregator as theirs
    from omegaconf import OmegaConf

    from fastagg.integrations.appfl import Aggregator

    logging.getLogger("fastagg").setLevel(logging.ERROR)
    settings: dict[str, dict[str, Any]] = {
        "FedAsync": {"alpha": 0.5, "policy": "constant"}, "FedBuff": {"buffer_size": CLIENTS},
        "FADAS": {"buffer_size": CLIENTS},
    }  # fmt: skip
    net, one = Net(model(0)), None
    if whose == "fastagg":
        one = Aggregator(net, {"algorithm": rule, "settings": settings[rule]})
    else:
        config = {"optimize_memory": False, "staleness_fn": "constant", "alpha": 0.5, "num_clients": 1, "K": CLIENTS}
        one = getattr(theirs, f"{rule}Aggregator")(net, OmegaConf.create(config), logging.getLogger("theirs"))
    # One upload more than there are clients, so that no client sends the same numbers twice in a row. fastagg would
    # take that for a repeated message.
    uploads, turn = replies(1.0, CLIENTS + 1), 0
    for client in range(CLIENTS):
        one.get_parameters(client_id=client)

    def version() -> int:
        return one.server.version if whose == "fastagg" else one.global_step

    def run() -> None:
        nonlocal turn
        turn, before = turn + 1, version()
        for client in range(CLIENTS):
            one.aggregate(client, uploads[(turn + client) % len(uploads)])
            one.get_parameters(client_id=client)
        if version() == before:
            raise AssertionError("ten uploads and no step: they were not counted")

    return Built(run, None)


def _if_installed(problem: Problem, make: Callable[[], Built]) -> Built:
    try:
        return make()
    except (ImportError, fastagg.MissingDependency) as error:
        raise Skip(str(error)) from error


def _case(
    framework: str, rule: str, ours: Callable[[], Built], theirs: Callable[[], Built] | None,
    more: dict[str, Callable[[], Built]] | None = None,
) -> Case:  # fmt: skip
    made = {"fastagg": ours} | ({framework: theirs} if theirs else {}) | (more or {})
    candidates = [Candidate(name, partial(_if_installed, make=make), CLIENTS + 10) for name, make in made.items()]
    return Case(
        f"server, {framework} {rule}", 0, lambda: candidates, "server", (SIZE,), apart=1e-5, period=CLIENTS,
        devices=("cpu",), peaks=True,
    )  # fmt: skip


CASES = [
    *(
        _case("Flower", rule, partial(_flower, rule, "fastagg"), partial(_flower, rule, "Flower"))
        for rule in ("FedAvg", "FedAdam")
    ),
    *(
        _case("FLARE", f"FedAvg of {what}", partial(_flare, full, "FedAvg"), partial(_flare, full, None),
              {"fastagg, at_once=1": partial(_flare, full, "FedAvg", 1)})
        for what, full in (("whole models", True), ("differences", False))
    ),
    _case("FLARE", "FedAMS of differences", partial(_flare, False, "FedAMS"), None),
    *(
        _case("APPFL", rule, partial(_appfl, rule, "fastagg"), partial(_appfl, rule, "APPFL"))
        for rule in ("FedAsync", "FedBuff")
    ),
    _case("APPFL", "FADAS", partial(_appfl, "FADAS", "fastagg"), None),
]  # fmt: skip
