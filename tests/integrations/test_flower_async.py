"""Asynchronous training in Flower: the same steps as the server alone, whatever nodes do, and across restarts."""

import itertools
import logging
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import fastagg

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Error, MetricRecord, RecordDict
from support.flower_apps import FakeGrid, model, reply, trained
from support.flower_apps import node as scoring
from support.replay import listen

from fastagg.integrations import flower

PRESETS = {
    "FADAS": partial(fastagg.FADAS, lr=0.1, buffer_size=2, delay_threshold=1),
    "FedBuff": partial(fastagg.FedBuff, buffer_size=3),
    "FedAsync": fastagg.FedAsync,
    "AsyncFedED": partial(fastagg.AsyncFedED, lam=1.0, eps=1.0),
    "CA2FL": partial(fastagg.CA2FL, num_clients=4, buffer_size=2),
    "ACE": partial(fastagg.ACE, lr=0.1, num_clients=4),
    "ACED": partial(fastagg.ACED, lr=0.1, num_clients=4, max_delay=3, warmup="partial"),
    "ASGD": partial(fastagg.ASGD, lr=0.1),
    "FedAC": partial(fastagg.FedAC, lr=0.1, buffer_size=2),
}
GRADIENTS = ("ACE", "ACED", "ASGD")


def initial() -> dict[str, torch.Tensor]:
    return {"w": torch.linspace(-1, 1, 12).view(3, 4), "b": torch.zeros(5), "count": torch.tensor(3)}


def gradient(message) -> RecordDict:
    """A client of a gradient rule: the gradient of |x - node|^2/2, and its note says that it is one."""
    arrays, node = model(message), message.metadata.dst_node_id
    arrays = {name: a - node if a.is_floating_point() else a for name, a in arrays.items()}
    version = message.content["config"]["fastagg-version"]
    return reply(arrays, loss=float(node), kind="gradient", version=version)


def uneven(node: int) -> int:
    return (0, 1, 3, 7, 2)[node % 5]


def asynchronous(make, **settings) -> flower.AsyncStrategy:
    return flower.AsyncStrategy(make, **{"retry_after": 0, **settings})


class Journal:
    """Records a server's calls in order, and repeats them on another server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple] = []
        for name in ("dispatch", "receive", "forget"):
            monkeypatch.setattr(fastagg.Server, name, self._recorded(name, getattr(fastagg.Server, name)))
        # Trained models are written down as the differences that they stand for.
        listen(self._taken, monkeypatch)

    def _taken(self, server, event):
        client, version, update, samples = event
        self.events.append(("receive", (client, update, version, samples), {}))

    def _recorded(self, name, method):
        def call(server, *args, **more):
            result = method(server, *args, **more)
            self.events.append((name, args, more))
            return result

        return call

    def replay(self, server: fastagg.Server) -> fastagg.Server:
        for name, args, more in list(self.events):
            more = {key: value for key, value in more.items() if key not in ("task", "incarnation")}  # of one server
            getattr(server, name)(*args, **more)
        return server


@pytest.mark.parametrize("name", PRESETS)
def test_every_rule_steps_as_the_server_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(monkeypatch)
    grid = FakeGrid(gradient if name in GRADIENTS else trained, [1, 2, 3, 4], delay=uneven)
    strategy = asynchronous(PRESETS[name])
    result = strategy.start(grid, flower.write(initial()), num_rounds=12)
    assert strategy.server.version >= 12
    assert not len(strategy.server.state_dict()["tasks"]["task_client"])
    alone = journal.replay(PRESETS[name](initial()))
    assert torch.equal(alone.flat, strategy.server.flat) and not torch.equal(alone.flat, PRESETS[name](initial()).flat)
    back = flower.read(result.arrays)
    assert {n: a.dtype for n, a in back.items()} == {n: a.dtype for n, a in initial().items()}
    assert all(torch.equal(back[n], a) for n, a in alone.parameters().items())


def test_history_and_limits() -> None:
    seen = []

    def evaluate(version, arrays):
        seen.append(version)
        return MetricRecord({"b": float(flower.read(arrays)["b"][0])})

    strategy = asynchronous(PRESETS["FedBuff"], evaluate_every=2)
    grid = FakeGrid(trained, [1, 2, 3, 4], delay=uneven)
    result = strategy.start(grid, flower.write(initial()), num_rounds=5, evaluate_fn=evaluate)
    assert strategy.server.version == 5 and strategy.session.tally.updates == 15
    assert seen == [0, 2, 4, 5] == sorted(result.evaluate_metrics_serverapp)
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert all(1 <= metrics["loss"] <= 4 for metrics in result.train_metrics_clientapp.values())

    with pytest.raises(fastagg.ConfigError, match="num_rounds"):
        strategy.start(grid, flower.write(initial()), num_rounds=None)


def test_concurrency_and_turns() -> None:
    out, most = set(), 0

    def train(message):
        nonlocal most
        out.add(message.metadata.dst_node_id)
        most = max(most, len(out))
        return trained(message)

    class Grid(FakeGrid):
        def pull_messages(self, ids):
            messages = super().pull_messages(ids)
            out.difference_update(m.metadata.src_node_id for m in messages)
            return messages

    grid = Grid(train, range(1, 8), delay=uneven)
    asynchronous(PRESETS["FedBuff"], concurrency=3).start(grid, flower.write(initial()), num_rounds=14)
    assert most == 3
    turns = [node for node, _ in grid.log]
    assert sorted(turns[:7]) == list(range(1, 8)), "whoever has waited longest is next"
    assert min(turns.count(node) for node in range(1, 8)) >= 3


def test_what_a_client_is_told() -> None:
    grid = FakeGrid(trained, [1, 2])
    config = ConfigRecord({"lr": 0.1})
    asynchronous(PRESETS["AsyncFedED"]).start(grid, flower.write(initial()), num_rounds=4, train_config=config)
    messages = [message for _, message in grid.log]
    first = messages[0].content
    assert sorted(first) == ["arrays", "config"], "mods want one record of each"
    assert first["config"] == {"lr": 0.1, "server-round": 1, "fastagg-version": 0, "fastagg-local-steps": 10}
    for told in (message.content["config"] for message in messages):
        assert told["server-round"] == told["fastagg-version"] + 1
    assert config == {"lr": 0.1}

    grid = FakeGrid(controlled, [1, 2])
    strategy = asynchronous(PRESETS["FedAC"])
    strategy.start(grid, flower.write(initial()), num_rounds=3)
    assert strategy.server.control.abs().sum() > 0
    assert torch.equal(flower.read(grid.log[0][1].content["control"])["0"], torch.zeros(17))


def test_what_each_client_reports_goes_to_the_trackers_besides_the_mean(tmp_path) -> None:
    strategy = asynchronous(PRESETS["FedBuff"], trackers={"csv": str(tmp_path / "all.csv")})
    strategy.start(FakeGrid(trained, [1, 2, 3]), flower.write(initial()), num_rounds=4)
    lines = [line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines()[1:]]
    told = [(name, float(value)) for _, name, value in lines if name.startswith("client/")]
    assert len(told) == 24 and {name for name, _ in told} == {
        f"client/{n}/{m}" for n in (1, 2, 3) for m in ("loss", "num-examples")
    }
    assert all(value == (float(name.split("/")[1]) if "loss" in name else 10.0) for name, value in told)


def controlled(message) -> RecordDict:
    answer = trained(message)
    answer["control"] = flower.write([torch.ones(17)])
    return answer


def once_bad(kind: str):
    """Node 1's second task ends badly."""
    count = {1: 0}

    def train(message):
        node = message.metadata.dst_node_id
        if node == 1:
            count[1] += 1
            if count[1] == 2:
                return {
                    "error": lambda: Error(5, "the node left"),
                    "nothing": lambda: RecordDict({}),
                    "silent": lambda: None,
                }[kind]()
        return trained(message)

    return train


WORDS = {
    "error": "node 1: failed: error 5: the node left", "silent": "node 1: failed: no answer in 1.5 s",
    "nothing": "node 1: refused: expected one ArrayRecord",
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_a_bad_answer_is_named_dropped_and_asked_for_again(kind: str, caplog, monkeypatch) -> None:
    journal = Journal(monkeypatch)
    grid = FakeGrid(once_bad(kind), [1, 2, 3], delay=uneven)
    strategy = asynchronous(PRESETS["FADAS"])
    ticks = itertools.count()  # time that does not depend on the machine
    clock = SimpleNamespace(monotonic=lambda: 0.01 * next(ticks), sleep=lambda seconds: None)
    monkeypatch.setattr(flower.asynchronous, "time", clock)
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        strategy.start(grid, flower.write(initial()), num_rounds=40, timeout=1.5)
    assert WORDS[kind] in caplog.text
    turns = [node for node, _ in grid.log].count(1)
    good = sum(name == "receive" and args[0] == 1 for name, args, _ in journal.events)
    assert turns >= 3 and good >= 2, "node 1 went on"
    assert strategy.session.tally.updates == 2 * strategy.server.version
    assert torch.equal(journal.replay(PRESETS["FADAS"](initial())).flat, strategy.server.flat)


def test_nodes_that_vanish_and_return() -> None:
    class Grid(FakeGrid):
        def get_node_ids(self):
            here = {1, 2, 3} if self.now < 30 or self.now > 60 else {1, 3, 9}
            return sorted(here)

    grid = Grid(trained, [], delay=uneven)
    strategy = asynchronous(PRESETS["FedBuff"])
    strategy.start(grid, flower.write(initial()), num_rounds=30)
    order = [node for node, _ in grid.log]
    first = order.index(9)
    last = len(order) - order[::-1].index(9)
    assert 2 in order[:first] and 2 not in order[first + 3 : last - 3] and 2 in order[last:]


def test_numbered_clients(caplog) -> None:
    """Rules with a row per client: a new node takes the row of one that has left, never of one that is online."""

    class Grid(FakeGrid):
        def get_node_ids(self):
            return [101, 102, 103] if self.now < 20 else [101, 104, 103, 105]

    grid = Grid(gradient, [], delay=lambda node: node % 3)
    strategy = asynchronous(partial(fastagg.ACE, lr=0.01, num_clients=3, warmup="partial"))
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        strategy.start(grid, flower.write(initial()), num_rounds=60)
    assert caplog.text.count("is now client 1, which was node 102") == 1
    assert caplog.text.count("node 105 gets no task: the rule has num_clients=3, and all are taken") == 1
    order = [node for node, _ in grid.log]
    assert 104 in order and 105 not in order, "there are three clients and all are taken"


class Crash(Exception):
    pass


@pytest.mark.parametrize("name", ["FADAS", "ACE", "AsyncFedED"])
def test_a_restart_loses_nothing_and_counts_nothing_twice(name: str, tmp_path, monkeypatch, caplog) -> None:
    make, file = PRESETS[name], tmp_path / "server.pt"
    train = gradient if name == "ACE" else trained

    def crash_at(limit):
        def evaluate(version, arrays):
            if version == limit:
                raise Crash
            return MetricRecord({"version": version})

        return evaluate

    grid = FakeGrid(train, [11, 12, 13, 14], delay=uneven)
    with pytest.raises(Crash):
        strategy = asynchronous(make, checkpoint=file, evaluate_aside=False)
        strategy.start(grid, flower.write(initial()), num_rounds=9, evaluate_fn=crash_at(5))
    kept = fastagg.server.checkpoint.read(file)
    assert kept["version"] == 4 and len(kept["tasks"]["task_client"])

    journal = Journal(monkeypatch)
    strategy = asynchronous(make, checkpoint=file)
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        # Another run: the old one's messages are not to be had, and the nodes come in another order.
        other = FakeGrid(train, [14, 13, 12, 11], delay=uneven)
        result = strategy.start(other, flower.write(initial()), num_rounds=9, evaluate_fn=crash_at(None))
    out = len(kept["tasks"]["task_client"])
    assert f"version 4; {out} tasks that were out are sent again" in caplog.text
    assert sorted(result.evaluate_metrics_serverapp) == list(range(10)), "the history goes on"
    received = sum(name == "receive" for name, _, _ in journal.events)
    assert strategy.session.tally.updates == kept["session"]["tally"]["updates"] + received
    if name == "FADAS":
        assert strategy.session.tally.updates == 2 * strategy.server.version
    if name == "ACE":
        clients = fastagg.server.checkpoint.read(file)["adapter"]["nodes"]
        assert clients == kept["adapter"]["nodes"] and len(clients) == 4, "rows stay with their nodes"

    alone = make(initial())
    alone.load_state_dict(kept)
    assert torch.equal(journal.replay(alone).flat, strategy.server.flat)
    assert torch.equal(fastagg.load(file).flat, strategy.server.flat)


def test_an_evaluation_of_clients_that_a_crash_ended_is_done_again(tmp_path, caplog) -> None:
    """Of the version of the restart: the model of the version in flight is gone."""

    def evaluate(version, arrays):
        if version == 3:
            raise RuntimeError("killed")

    def scored(message):
        return scoring(message) if ready or message.metadata.message_type == "train" else None

    ready, settings = False, {"checkpoint": tmp_path / "server.pt", "evaluate_clients_every": 2}
    strategy = asynchronous(PRESETS["FedBuff"], evaluate_aside=False, fraction_evaluate=1.0, **settings)
    with pytest.raises(RuntimeError, match="killed"):
        strategy.start(FakeGrid(scored, [1, 2, 3]), flower.write(initial()), num_rounds=9, evaluate_fn=evaluate)
    assert fastagg.server.checkpoint.read(tmp_path / "server.pt")["adapter"]["unevaluated"] == [2]
    ready, again = True, asynchronous(PRESETS["FedBuff"], fraction_evaluate=1.0, **settings)
    with caplog.at_level(logging.INFO, "flwr.fastagg"):
        result = again.start(FakeGrid(scored, [1, 2, 3]), flower.write(initial()), num_rounds=5)
    assert sorted(result.evaluate_metrics_clientapp) == [2, 4, 5]
    assert "clients evaluate this version again, for [2] before the restart" in caplog.text
    grid = FakeGrid(scored, [1, 2, 3])
    asynchronous(PRESETS["FedBuff"], fraction_evaluate=1.0, **settings).start(
        grid, flower.write(initial()), num_rounds=5
    )
    assert not grid.log, "it is finished: nobody is asked anything"


def test_a_damaged_checkpoint_is_not_started_over(tmp_path) -> None:
    (tmp_path / "server.pt").write_bytes(b"half a file")
    strategy = asynchronous(PRESETS["FADAS"], checkpoint=tmp_path / "server.pt")
    with pytest.raises(fastagg.CheckpointError, match="not a whole checkpoint"):
        strategy.start(FakeGrid(trained, [1]), flower.write(initial()), num_rounds=1)
