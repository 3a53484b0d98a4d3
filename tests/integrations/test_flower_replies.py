"""Flower's metrics, errors and messages. What replies come to is in test_replies.py, in every framework."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import Error, MetricRecord, RecordDict
from support.flower_apps import FakeGrid, model, trained

from fastagg.integrations import flower
from fastagg.integrations.flower import tasks
from fastagg.integrations.goals import Watch

FEDBUFF = partial(fastagg.FedBuff, buffer_size=2)


def initial() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(3, 4)}


@pytest.mark.parametrize(
    ("given", "mean"),
    [
        ([{"acc": 0.9}, {}, {}], {"acc": 0.9}),
        ([{"acc": 0.9}, {"acc": 0.3, "f1": 0.5}, {}], {"acc": 0.5, "f1": 0.5}),  # of 10 and 20 samples
        ([{"roc": [1.0, 4.0]}, {"roc": [4.0, 1.0]}, {}], {"roc": [3.0, 2.0]}),
        ([{"roc": [1.0, 4.0]}, {"roc": [4.0]}, {}], None),
        ([{}, {}, {}], None),
    ],
)
def test_a_metric_is_the_mean_over_those_who_reported_it(given, mean) -> None:
    records = [
        RecordDict({"m": MetricRecord({"num-examples": 10 * (i + 1), **metrics})}) for i, metrics in enumerate(given)
    ]
    found = tasks.averaged(tasks.aggregate_metricrecords, records, "num-examples")
    assert found is None if mean is None else dict(found) == {k: pytest.approx(v) for k, v in mean.items()}


@pytest.mark.parametrize("error", [KeyError, RuntimeError, ValueError])
def test_an_error_in_the_users_function_ends_the_run_as_in_flower(error: type[Exception]) -> None:
    def average(contents, key):
        raise error("mine")

    for strategy in (
        flower.SyncStrategy(fastagg.FedAvg, poll=0, fraction_evaluate=0.0, train_metrics_aggr_fn=average),
        flower.AsyncStrategy(FEDBUFF, poll=0, train_metrics_aggr_fn=average),
    ):
        with pytest.raises(error, match="mine"):
            strategy.start(FakeGrid(trained, [1, 2]), flower.write(initial()), num_rounds=1)


def test_a_round_is_saved_before_it_is_evaluated(tmp_path) -> None:
    def node(message):
        if message.metadata.message_type == "train":
            return trained(message)
        raise RuntimeError("evaluation")

    file = tmp_path / "server.pt"
    for version in (1, 2):  # each restart is one round further
        strategy = flower.SyncStrategy(fastagg.FedAvg, poll=0, checkpoint=file)
        with pytest.raises(RuntimeError, match="evaluation"):
            strategy.start(FakeGrid(node, [1, 2]), flower.write(initial()), num_rounds=5)
        assert fastagg.load(file).version == version


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda message: Error(3, "Message Unavailable"), "timeout="),
        (lambda message: RecordDict({"arrays": flower.write(model(message))}), "no 'num-examples'"),
    ],
)
def test_messages_are_in_flowers_words(answer, words: str) -> None:
    make = partial(FEDBUFF, weighting="samples")
    strategy = flower.AsyncStrategy(make, poll=0, retry_after=0, max_failures=2)
    with pytest.raises(fastagg.RunFailed, match=words):
        strategy.start(FakeGrid(answer, [1]), flower.write(initial()), num_rounds=1)


def test_nan_is_never_the_best() -> None:
    watch = Watch("accuracy", None)
    for step, (value, best) in enumerate([(math.nan, False), (0.2, True), (math.nan, False), (0.3, True)]):
        assert watch.see(step, {"accuracy": value}) == best
    watch.load_state_dict({"best": math.nan, "version": 0, "since": 3})
    assert watch.see(5, {"accuracy": 0.1})


def test_a_subclass_that_configures_rounds_itself_needs_no_initial_parameters() -> None:
    """Flower's server asks a client for the model, evaluates it, and then begins the first round."""
    import numpy as np
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    strategy = flower.ClassicStrategy(fastagg.FedAvg)
    assert strategy.initialize_parameters(None) is None
    assert strategy.evaluate(0, ndarrays_to_parameters([np.zeros(3, np.float32)])) is None
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.ones(3, np.float32)]), 10, {})
    made, _ = strategy.aggregate_fit(1, [(type("Proxy", (), {"cid": "a"})(), result)], [])
    assert np.allclose(parameters_to_ndarrays(made)[0], 1.0)
