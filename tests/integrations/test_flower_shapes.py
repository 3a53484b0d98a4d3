"""What public Flower apps do in a subclass, by shape: a subclass of Flower's FedAvg and of ours, number by number.

A shape is a class that is put in front of either strategy. What clients receive, the last model, the history and what
the subclass has noted in ``self.seen`` must be the same; or ours raises an error that says why.
"""

import random
from typing import Any

import numpy as np
import pytest

import fastagg

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from support.flower_apps import CollectingGrid

from fastagg.integrations import flower

ROUNDS, NODES = 3, [3, 5, 8, 9]
SHAPES: dict[str, tuple[type, dict[str, Any], str]] = {}


def shape(name: str, error: str = "", **settings: Any):
    """Add a shape. ``error``: what ours raises instead. ``settings``: the strategy's."""

    def add(kind: type) -> type:
        assert name not in SHAPES
        SHAPES[name] = (kind, settings, error)
        return kind

    return add


class Grid(CollectingGrid):
    """Nodes that train towards a place of their own. Node 9 fails in round 2; a node returns what it was told."""

    def __init__(self) -> None:
        super().__init__(self.answer, NODES)
        self.received: list[tuple[int, dict, dict]] = []

    def answer(self, message: Message) -> RecordDict | Error:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        arrays = {n: a.numpy() for n, a in message.content["arrays"].items()}
        told = {k: v for k, v in message.content["config"].items() if not k.startswith("fastagg-")}
        self.received.append((node, told, arrays))
        score = float(sum(a.sum() for a in arrays.values()))
        metrics = MetricRecord({"num-examples": 10 * node, "loss": 1.0 / node, "score": score, "bad": int(node == 5)})
        if kind == MessageType.EVALUATE:
            return RecordDict({"metrics": metrics})
        if node == 9 and told.get("server-round") == 2:
            return Error(1, "out of memory")
        rate = np.float32(told.get("lr", 0.3))
        arrays = {n: a + rate * (np.cos(node + np.arange(a.size)).reshape(a.shape) - a) for n, a in arrays.items()}
        note = ConfigRecord({"partition": node % 3})
        return RecordDict({"arrays": record(arrays), "metrics": metrics, "note": note})


def record(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({n: Array(np.asarray(a, np.float32)) for n, a in arrays.items()})


def numpy(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    return {n: a.numpy() for n, a in arrays.items()}


def good(replies) -> list[Message]:
    return [r for r in replies if r.has_content()]


# -- looking at the replies --------------------------------------------------------------------------------------


@shape("metrics are read only after super()")
class _:
    def aggregate_train(self, number, replies):
        found = super().aggregate_train(number, replies)
        self.seen += sorted(r.content["metrics"]["loss"] for r in replies if not r.has_error())
        self.seen += sorted(r.content["note"]["partition"] for r in good(replies))
        return found


@shape("arrays are read only after super()", error=r"\['arrays'\]: the arrays of this reply were added")
class _:
    def aggregate_train(self, number, replies):
        found = super().aggregate_train(number, replies)
        self.seen += [r.content["arrays"]["w"].numpy() for r in good(replies)]
        return found


@shape("len(), an index, a slice")
class _:
    def aggregate_train(self, number, replies):
        self.seen += [len(replies), replies[0].has_content() or replies[1].has_content(), len(replies[1:3])]
        return super().aggregate_train(number, replies)


# -- choosing and changing replies -------------------------------------------------------------------------------


@shape("replies are removed in place")
class _:
    def aggregate_train(self, number, replies):
        for r in list(replies):
            if r.has_error() or r.content["metrics"]["bad"]:
                replies.remove(r)
        return super().aggregate_train(number, replies)


@shape("_check_and_log_replies is overridden")
class _:
    def _check_and_log_replies(self, replies, is_train, validate=True):
        valid, errors = super()._check_and_log_replies(replies, is_train, validate)
        return [r for r in valid if not r.content["metrics"]["bad"]], errors


@shape("one array of the record is replaced")
class _:
    def aggregate_train(self, number, replies):
        for r in good(replies):
            r.content["arrays"]["b"] = Array(np.zeros(7, np.float32))
        return super().aggregate_train(number, replies)


@shape("weights are written into the metrics", weighted_by_key="trust", fraction_evaluate=0.0)
class _:
    def aggregate_train(self, number, replies):
        for r in good(replies):
            r.content["metrics"]["trust"] = 1.0 / (1 + r.content["metrics"]["num-examples"])
        return super().aggregate_train(number, replies)


@shape("messages are made anew")
class _:
    def aggregate_train(self, number, replies):
        made = []
        for sent, r in zip(self.messages, sorted(good(replies), key=lambda r: r.metadata.src_node_id), strict=False):
            content = RecordDict({"arrays": r.content["arrays"], "metrics": r.content["metrics"]})
            made.append(Message(content, reply_to=sent))
        return super().aggregate_train(number, made)

    def configure_train(self, *given):
        self.messages = sorted(super().configure_train(*given), key=lambda m: m.metadata.dst_node_id)
        return self.messages


@shape("an array is missing from all replies", error="no reply of this round could be used; ShapeMismatch")
class _:
    def aggregate_train(self, number, replies):
        for r in good(replies):
            del r.content["arrays"]["b"]
        return super().aggregate_train(number, replies)


@shape(
    "the weight is missing from all replies",
    error="no reply of this round could be used; ConfigError: the reply has no",
)
class _:
    def aggregate_train(self, number, replies):
        for r in good(replies):
            del r.content["metrics"]["num-examples"]
        return super().aggregate_train(number, replies)


# -- doing it all, or something more -----------------------------------------------------------------------------


@shape("its own median, with Flower's metrics")
class _:
    def aggregate_train(self, number, replies):
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        sent = [numpy(r.content["arrays"]) for r in valid]
        arrays = record({n: np.median([one[n] for one in sent], axis=0) for n in sent[0]})
        return arrays, self.train_metrics_aggr_fn([r.content for r in valid], self.weighted_by_key)


@shape("a round is skipped")
class _:
    def aggregate_train(self, number, replies):
        return (None, None) if number == 2 else super().aggregate_train(number, replies)


# -- who is asked, and for what ----------------------------------------------------------------------------------


@shape("a learning rate in the config")
class _:
    def configure_train(self, number, arrays, config, grid):
        config["lr"] = 0.5 / number
        return super().configure_train(number, arrays, config, grid)


@shape("a generator of messages")
class _:
    def configure_train(self, *given):
        yield from super().configure_train(*given)


@shape("each node is sent a model of its own")
class _:
    def configure_train(self, number, arrays, config, grid):
        messages = []
        for node in grid.get_node_ids():
            mine = record({n: a * np.float32(1 + node / 100) for n, a in numpy(arrays).items()})
            told = ConfigRecord({"server-round": number})
            messages.append(Message(RecordDict({"arrays": mine, "config": told}), node, MessageType.TRAIN))
        return messages


# -- evaluation and metrics --------------------------------------------------------------------------------------


def _spread(contents, key):
    found = [content["metrics"]["loss"] for content in contents]
    return MetricRecord({"spread": max(found) - min(found), "of": sum(c["note"]["partition"] for c in contents)})


@shape("a metrics function that reads metrics and notes", train_metrics_aggr_fn=_spread)
class _:
    pass


def _norms(contents, key):
    return MetricRecord({"norm": sum(float(c["arrays"]["w"].numpy().sum()) for c in contents)})


@shape("a metrics function that reads arrays", error="were added to the sum", train_metrics_aggr_fn=_norms)
class _:
    pass


@shape("a metrics function that reads arrays, of replies that were looked at", train_metrics_aggr_fn=_norms)
class _:
    def aggregate_train(self, number, replies):
        return super().aggregate_train(number, list(replies))


@shape("the rounds are its own")
class _:
    def start(self, grid, initial_arrays, num_rounds=3, **more):
        arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            asked = self.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, metrics = self.aggregate_train(number, grid.send_and_receive(asked))
            self.seen.append(metrics["loss"])
        result = flower.asynchronous.Result()
        result.arrays = arrays
        return result


def run(kind: type, *args: Any, **settings: Any):
    random.seed(7)
    grid, strategy = Grid(), kind(*args, **settings)
    strategy.seen = []
    start = {"w": np.linspace(-1, 1, 400).reshape(20, 20), "b": np.zeros(7)}
    result = strategy.start(grid, record(start), num_rounds=ROUNDS)
    return grid, strategy, result


def history(result) -> dict:
    kinds = ("train_metrics_clientapp", "evaluate_metrics_clientapp")
    return {(kind, n): dict(row) for kind in kinds for n, row in getattr(result, kind).items()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_subclass_gives_flowers_numbers_or_a_named_error(name: str) -> None:
    mixin, settings, error = SHAPES[name]
    ours, theirs = (type("Strategy", (mixin, base), {}) for base in (flower.SyncStrategy, FedAvg))
    if error:
        with pytest.raises(fastagg.FastaggError, match=error):
            run(ours, fastagg.FedAvg, **settings)
        return
    grid, strategy, result = run(ours, fastagg.FedAvg, **settings)
    other_grid, other, expected = run(theirs, **settings)
    assert len(grid.received) == len(other_grid.received)
    for mine, flowers in zip(grid.received, other_grid.received, strict=True):
        assert mine[0] == flowers[0] and mine[1] == pytest.approx(flowers[1]), "who was asked, and what it was told"
        for array, sent in flowers[2].items():
            np.testing.assert_allclose(mine[2][array], sent, atol=1e-6)
    for array, last in numpy(expected.arrays).items():
        np.testing.assert_allclose(result.arrays[array].numpy(), last, atol=1e-6)
        assert result.arrays[array].numpy().dtype == last.dtype
    assert history(result).keys() == history(expected).keys()
    for key, row in history(expected).items():
        assert history(result)[key] == pytest.approx(row, rel=1e-4)
    np.testing.assert_allclose(strategy.seen, other.seen, rtol=1e-4, atol=1e-6)
    assert strategy.session is None or strategy.session.tally.refused.total() == 0
