"""FedEcho under Flower, with real images: clients of two digits each, and a server that has images without labels."""

from functools import partial

import pytest
import torch

import fastagg

pytest.importorskip("flwr")
pytest.importorskip("sklearn")

from flwr.app import MetricRecord
from support.federation import APP
from support.flower_apps import FakeGrid, model, reply

from fastagg.integrations import flower

NODES = [11, 12, 13, 14, 15]


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(APP))
    from digits import task

    return task


def make(task, **settings):
    distill = fastagg.Distillation(task.network(), task.unlabelled(), lr=2e-3, **settings)
    return partial(fastagg.FedEcho, distill=distill, num_clients=len(NODES), buffer_size=2)


def clients(task):
    """Each node has two digits of the ten, so that a client's own model is wrong about the other eight."""
    images, labels = task.data(0, 1)

    def train(message):
        node, version = message.metadata.dst_node_id, message.content["config"]["fastagg-version"]
        mine = labels // 2 == node - NODES[0]
        network = task.network()
        network.load_state_dict(model(message))
        task.train(network, images[mine], labels[mine], steps=10, lr=0.02, seed=100 * version + node)
        return reply(network.state_dict(), int(mine.sum()))

    return train


def strategy(make, **settings) -> flower.AsyncStrategy:
    return flower.AsyncStrategy(make, evaluate_aside=False, **settings)


def uneven(node: int) -> int:
    return {11: 0, 12: 1, 13: 2, 14: 5, 15: 17}[node]  # node 15 is a straggler


def test_it_distils_from_all_clients_stragglers_included(task) -> None:
    x, y = task.data(-1, 1)
    network, found = task.network(), {}

    def evaluate(version, arrays):
        network.load_state_dict(flower.read(arrays))
        return MetricRecord({"accuracy": task.accuracy(network, x, y)})

    for name, rule in (("FedEcho", make(task)), ("FedBuff", partial(fastagg.FedBuff, buffer_size=2))):
        run = strategy(rule)
        start = flower.write(task.network().state_dict())
        result = run.start(FakeGrid(clients(task), NODES, delay=uneven), start, num_rounds=40, evaluate_fn=evaluate)
        tail = [result.evaluate_metrics_serverapp[version]["accuracy"] for version in range(21, 41)]
        found[name] = sum(tail) / len(tail)
        if name == "FedEcho":
            assert run.server.distillation.flushes == 40 and not run.session.tally.refused
    assert found["FedEcho"] > 0.5, found
    assert found["FedEcho"] > found["FedBuff"], found


def test_a_restart_goes_on_with_its_teachers(task, tmp_path) -> None:
    file = tmp_path / "server.pt"

    def once(rounds: int, nodes=NODES):
        run = strategy(make(task), checkpoint=file)
        run.start(FakeGrid(clients(task), nodes), flower.write(task.network().state_dict()), num_rounds=rounds)
        return run

    before = once(4)
    kept = fastagg.load(file, distill=make(task).keywords["distill"])
    assert torch.equal(kept.flat, before.server.flat) and kept.version == 4
    after = once(7, NODES[::-1])
    assert after.server.version == 7 and after.session.tally.updates == 14
    assert not torch.equal(after.server.flat, before.server.flat)
