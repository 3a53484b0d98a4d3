"""The example app in Flower's own processes, where a node is slow, and a node and the server die; and simulated."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastagg

pytest.importorskip("flwr")
pytest.importorskip("sklearn")

from support.federation import APP, Federation
from support.replay import play

pytestmark = pytest.mark.slow

# The app's server with a journal of what reached it.
JOURNAL = """
import itertools
import os

import torch

import fastagg
from fastagg.integrations.session import Book

take, count = Book.take, itertools.count()


def recorded(self, given):
    outcomes = take(self, given)
    for (one, answer), outcome in zip(given, outcomes):
        if isinstance(outcome, fastagg.Receipt):
            task, samples = one.task, answer.num_samples
            update = task.delta(answer.update)
            path = FOLDER + f"/{next(count):04d}.pt"
            torch.save((task.client, task.version, update, samples), path + ".partial")
            os.replace(path + ".partial", path)
    return outcomes


Book.take = recorded
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    running: list[Federation] = []

    def begin(**settings) -> Federation:
        running.append(Federation(tmp_path, **settings))
        return running[-1]

    yield begin
    for federation in running:
        federation.close()


def journal(federation: Federation, name: str) -> Path:
    """Make the app write a journal from the next run on."""
    folder = federation.folder / name
    folder.mkdir()
    server = Path("digits", "server_app.py")
    (federation.app / server).write_text((APP / server).read_text() + JOURNAL.replace("FOLDER", repr(str(folder))))
    return folder


def accuracy(log: str) -> float:
    return float(re.findall(r"accuracy (\d\.\d+) after", log)[-1])


def test_a_federation_where_everything_dies_once(start, monkeypatch) -> None:
    federation = start()
    nodes = [federation.node(part, 4, slow=2.0 if part == 3 else 0.0) for part in range(4)]
    checkpoint = federation.folder / "server.pt"
    settings = {"rule": "FADAS", "checkpoint": str(checkpoint), "versions": 8, "timeout": 120.0}

    # Half way a node is killed, and another process with its data comes later.
    first = journal(federation, "first")
    run = federation.run("first-run", **settings)
    federation.wait("first-run", "fastagg: version 2:", 480)
    federation.kill(nodes[1])
    federation.node(1, 4)
    # Then the server is, while clients train.
    federation.wait("first-run", "fastagg: version 4:", 480)
    os.kill(federation.server_app(), signal.SIGKILL)
    federation.kill(run)
    state = fastagg.server.checkpoint.read(checkpoint)
    counted, out = state["session"]["tally"]["updates"], len(fastagg.server.checkpoint.open_tasks(state))

    second = journal(federation, "second")
    run = federation.run("second-run", **settings)
    log = federation.wait("second-run", "after 8 versions", 480)
    resumed = re.search(rf"resumed run \w+ from {checkpoint}, version (\d+)(?:; (\d+) tasks that were out)?", log)
    assert resumed and int(resumed[1]) >= 4 and int(resumed[2] or 0) == out  # on a busy machine all may have answered
    assert accuracy(log) > 0.9

    state = fastagg.server.checkpoint.read(checkpoint)
    assert state["version"] == 8
    assert state["session"]["tally"]["updates"] == 16, "two to a step: none lost or counted twice"
    history = state["adapter"]["history"]["evaluate_metrics_serverapp"]
    assert sorted(history) == list(range(9)), "the history spans both runs"

    events = [torch.load(path) for path in sorted(first.glob("*.pt"))[:counted] + sorted(second.glob("*.pt"))]
    assert len(events) == 16
    assert len({client for client, *_ in events}) == 5, "four nodes, and the one that came for a dead one"
    monkeypatch.syspath_prepend(str(federation.app))
    from digits.server_app import ASYNCHRONOUS
    from digits.task import network

    alone = ASYNCHRONOUS["FADAS"](network().state_dict())
    play(alone, events)
    assert torch.equal(alone.flat, fastagg.load(checkpoint).flat)


@pytest.mark.parametrize("rule", ["FADAS", "FedAMS", "FedEcho"])
def test_in_flowers_simulation_engine(start, rule: str) -> None:
    pytest.importorskip("ray")
    federation = start(simulated=4)
    federation.run("run", rule=rule, versions=8)
    assert accuracy(federation.wait("run", "after 8 versions", 240)) > 0.9


def test_the_lora_example_in_flowers_simulation_engine(start) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("peft")
    federation = start(simulated=6, app=APP.parent / "flower_lora")
    federation.run("run", how="padded", versions=8, timeout=300.0)
    # That it is learnt is test_flower_lora.py's; here it is the app that runs. The base alone has .178.
    assert accuracy(federation.wait("run", "after 8 versions", 400)) > 0.2
