"""What a user of an asynchronous strategy expects: evaluation, choosing nodes, goals, failures that end, summaries."""

import itertools
import math
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, MetricRecord, RecordDict
from support.flower_apps import FakeGrid, model, node, trained

from fastagg.integrations import Best, Stop, flower
from fastagg.integrations.flower import tasks
from fastagg.integrations.goals import Watch

FEDBUFF = partial(fastagg.FedBuff, buffer_size=2)


def initial() -> dict[str, torch.Tensor]:
    return {"w": torch.zeros(3, 4), "b": torch.zeros(5)}


def asynchronous(make=FEDBUFF, **settings) -> flower.AsyncStrategy:
    return flower.AsyncStrategy(make, **{"retry_after": 0, **settings})


def start(strategy, grid, rounds=6, **more):
    return strategy.start(grid, flower.write(initial()), num_rounds=rounds, **more)


# -- evaluation at clients ---------------------------------------------------------------------------------------


def test_clients_evaluate_at_intervals_and_nobody_waits_for_them() -> None:
    # Evaluation takes a node ten times as long as training.
    grid = FakeGrid(node, range(1, 5))
    slow = {"train": 0, "evaluate": 40}
    grid.delay = lambda n: slow[grid.log[-1][1].metadata.message_type]
    models = {}
    strategy = asynchronous(
        evaluate_clients_every=3, fraction_evaluate=0.5, min_evaluate_nodes=1,
        on_version=lambda version, metrics, model: models.update({version: float(model["w"].mean())}),
    )  # fmt: skip
    result = start(strategy, grid, 8, evaluate_config=ConfigRecord({"batch": 64}))
    asked = [(n, message) for n, message in grid.log if message.metadata.message_type == "evaluate"]
    assert len(asked) == 6, "versions 3, 6 and the last, two of four nodes each"
    for _, message in asked:
        version = message.content["config"]["fastagg-version"]
        assert message.content["config"] == {"batch": 64, "server-round": version, "fastagg-version": version}
    found = result.evaluate_metrics_clientapp
    assert sorted(found) == [3, 6, 8]
    for version, metrics in found.items():
        assert metrics["score"] == pytest.approx(models[version]), "the version itself, though the server went on"
    kinds = [message.metadata.message_type for _, message in grid.log]
    first = kinds.index("evaluate")
    assert "train" in kinds[first + 2 : first + 6], "training went on"


def test_a_client_that_cannot_evaluate_is_left_out_of_the_average(caplog, monkeypatch) -> None:
    def answer(message):
        if message.metadata.message_type == "evaluate":
            if message.metadata.dst_node_id == 1:
                return Error(3, "no test data")
            if message.metadata.dst_node_id == 2:
                return None
        return node(message)

    ticks = itertools.count()  # time that does not depend on the machine
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(ticks), sleep=lambda seconds: None)
    monkeypatch.setattr(flower.asynchronous, "time", clock)
    strategy = asynchronous(evaluate_clients_every=2)
    result = start(strategy, FakeGrid(answer, [1, 2, 3]), 2, timeout=1.5)
    assert list(result.evaluate_metrics_clientapp) == [2]
    assert "node 1 could not evaluate: no test data" in caplog.text
    assert "node 2 did not evaluate version 2" in caplog.text
    assert not strategy.session.tally.failed, "it trains as before"


def test_clients_own_scores_can_end_a_run_and_pick_the_best(tmp_path) -> None:
    strategy = asynchronous(
        evaluate_clients_every=1, stop=Stop("clients/score", target=0.5), best=Best(tmp_path / "b.pt", "clients/score")
    )
    result = start(strategy, FakeGrid(node, [1, 2, 3]), None)
    version, metrics = max(result.evaluate_metrics_clientapp.items())
    assert metrics["score"] >= 0.5 and "clients/score reached 0.5" in strategy.session.over
    assert float(torch.load(tmp_path / "b.pt")["w"].mean()) == pytest.approx(metrics["score"])
    assert version <= strategy.server.version < 20


def test_nobody_asks_clients_to_evaluate_unless_told_to() -> None:
    grid = FakeGrid(node, [1, 2])
    start(asynchronous(fraction_evaluate=0.0), grid, 3)
    assert {message.metadata.message_type for _, message in grid.log} == {"train"}
    with pytest.raises(fastagg.ConfigError, match="evaluate_config: clients do not evaluate"):
        start(asynchronous(), grid, 3, evaluate_config=ConfigRecord())


# -- evaluation at the server ------------------------------------------------------------------------------------


def test_updates_are_received_while_a_version_is_evaluated() -> None:
    """The evaluation of version 1 ends only when version 2 is there: it would wait for ever if it stopped the loop."""
    later, seen, models = threading.Event(), [], {}
    strategy = asynchronous(
        on_version=lambda version, metrics, model: models.update({version: float(model["w"].mean())})
    )

    def evaluate(version, arrays):
        if version == 1:
            assert later.wait(30)
        seen.append((version, float(flower.read(arrays)["w"].mean())))
        return MetricRecord({"v": version})

    class Watching(FakeGrid):
        def push_messages(self, messages):
            messages = list(messages)
            if any(message.content["config"]["fastagg-version"] >= 2 for message in messages):
                later.set()
            return super().push_messages(messages)

    grid = Watching(node, [1, 2, 3])
    result = start(strategy, grid, 4, evaluate_fn=evaluate)
    assert [version for version, _ in seen] == [0, 1, 2, 3, 4] == sorted(result.evaluate_metrics_serverapp)
    assert dict(seen) == pytest.approx(models) and len(set(models.values())) == 5, "each its own model"


# -- nodes -------------------------------------------------------------------------------------------------------


def test_a_hook_chooses_nodes() -> None:
    def choose(free, version):
        return [node for node in sorted(free, reverse=True) if node % 2 == version % 2]

    grid = FakeGrid(node, range(1, 7))
    start(asynchronous(choose=choose, concurrency=2), grid, 6)
    for n, message in grid.log:
        assert n % 2 == message.content["config"]["fastagg-version"] % 2
    assert [n for n, _ in grid.log[:2]] == [6, 4]


@pytest.mark.parametrize("bad", [lambda free, version: [99], lambda free, version: [*free, *free]])
def test_a_hook_that_names_others_is_refused(bad) -> None:
    with pytest.raises(fastagg.ConfigError, match="choose: expected some of the free nodes"):
        start(asynchronous(choose=bad), FakeGrid(node, [1, 2]))
    with pytest.raises(fastagg.ConfigError, match="choose: expected a function"):
        asynchronous(choose=3)


def test_training_waits_for_enough_nodes() -> None:
    class Grid(FakeGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            return [1, 2] if self.looks < 50 else [1, 2, 3]

        def push_messages(self, messages):
            assert self.looks >= 50
            return super().push_messages(messages)

    strategy = asynchronous(min_available_nodes=3)
    start(strategy, Grid(node, []), 3)
    assert strategy.server.version == 3


def test_metrics_say_which_node_sent_them() -> None:
    seen = []

    def average(records, key):
        seen.append([dict(record["fastagg"]) for record in records])
        return MetricRecord({"n": len(records)})

    start(asynchronous(train_metrics_aggr_fn=average), FakeGrid(node, [1, 2, 3]), 3)
    assert [len(row) for row in seen] == [2, 2, 2]
    assert {told["node-id"] for row in seen for told in row} <= {1, 2, 3}
    assert [row[-1]["version"] for row in seen] == [1, 2, 3] and all(told["delay"] >= 0 for row in seen for told in row)


# -- failures ----------------------------------------------------------------------------------------------------


def test_what_a_failed_run_learnt_is_in_its_checkpoint(tmp_path) -> None:
    count = 0

    def train(message):
        nonlocal count
        count += 1
        return node(message) if count <= 7 else Error(2, "broken")

    file = tmp_path / "server.pt"
    with pytest.raises(fastagg.RunFailed, match="broken"):
        start(asynchronous(checkpoint=file, checkpoint_every=100), FakeGrid(train, [1, 2]), 99)
    assert fastagg.load(file).version == 3
    again = asynchronous(checkpoint=file)
    start(again, FakeGrid(node, [1, 2]), 5)
    assert again.server.version == 5 and again.session.tally.updates == 10


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
        flower.SyncStrategy(fastagg.FedAvg, fraction_evaluate=0.0, train_metrics_aggr_fn=average),
        flower.AsyncStrategy(FEDBUFF, train_metrics_aggr_fn=average),
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
        strategy = flower.SyncStrategy(fastagg.FedAvg, checkpoint=file)
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
    strategy = flower.AsyncStrategy(make, retry_after=0, max_failures=2)
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
