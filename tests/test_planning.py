"""fastagg.plan: what it predicts is what larger servers take, and it promises nothing that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastagg

SIZE, CLIENTS, TIME = 700_000, 20, (1e-5, 1e-9)
RULES = [
    pytest.param("FADAS", {"buffer_size": 3}),
    pytest.param("ACE", {"cache": "int8"}),
    pytest.param("ACE", {"cache": "disk"}),
    pytest.param("ACE", {"cache": "fp32"}, marks=pytest.mark.slow),
    pytest.param("CA2FL", {"buffer_size": 3}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rule", "settings"), RULES)
def test_it_predicts_a_larger_server(rule: str, settings: dict[str, Any], tmp_path: Path) -> None:
    more = {"lr": 0.1} | ({"num_clients": CLIENTS} if rule != "FADAS" else {})
    disk = fastagg.Tiered("int8", path=tmp_path / "rows", memory="4MB")  # 5 of the 20
    settings = {**settings, **({"cache": disk} if settings.get("cache") == "disk" else {})}
    training = 5 if settings.get("cache") is disk else 0.001
    found = fastagg.plan(
        rule, clients=CLIENTS, parameters=SIZE, per_day=86400, in_flight=training, seconds=TIME, **settings
    )
    make = getattr(fastagg, rule)
    with fastagg.open(tmp_path / "state", lambda: make(torch.zeros(SIZE), **more, **settings)) as server:
        for turn in range(2 * CLIENTS):
            if turn == CLIENTS:
                server.checkpoint()
                before = server._in_log("test").journal.written
            server.dispatch(turn % CLIENTS)
            server.receive(turn % CLIENTS, torch.ones(SIZE))
        held = server.memory()
        logged = server._in_log("test").journal.written - before
    assert found.needs["memory"].needed == pytest.approx(held["total"] - held["journal"] + 4 * SIZE, rel=0.05)
    assert found.needs["log"].needed == pytest.approx(logged, rel=0.03)  # 20 answers, of one second
    if settings.get("cache") is disk:
        rows = found.needs["disk space"].needed - 2 * found.needs["memory"].needed  # two checkpoints hold the rest
        assert rows == pytest.approx(2 * CLIENTS * 1.0156 * SIZE, rel=0.02)


def test_what_is_refused_is_not_promised() -> None:
    on_disk = fastagg.plan(
        "ACE", clients=1e6, parameters=1e9, seconds=TIME, in_flight=1000, cache=fastagg.Tiered("int8")
    )
    assert on_disk.ranks == 0 and on_disk.first in ("memory", "disk space") and on_disk.leaves == 0
    with pytest.raises(fastagg.ConfigError) as refusal:
        fastagg.sharded(
            lambda piece: fastagg.ACE(piece, lr=1, num_clients=2, cache=fastagg.Tiered()), torch.zeros(70_000)
        )
    assert on_disk.refused["sharded"] == str(refusal.value)
    cut = fastagg.plan("ACE", clients=1e8, parameters=1e7, seconds=TIME, cache="int8")  # 153 groups, 1,985 machines
    assert cut.ranks == 0 and cut.first == "memory" and "153 groups" in cut.change and "fewer than" in cut.change
    fits = fastagg.plan("ACE", clients=1e6, parameters=1e7, seconds=TIME, cache="int8")
    assert fits.ranks == 20 and "fastagg.sharded on 20 machines" in fits.change and "Tiered" in fits.change
    assert fits.carries["slices"] == "torch.distributed, 20 ranks"
    small = fastagg.plan("ACE", clients=100, parameters=1e6, seconds=TIME, cache="int8")
    assert (small.ranks, small.change, small.carries["slices"]) == (1, "", "none")


def test_the_first_to_end_is_named_and_its_change_helps() -> None:
    ask: dict[str, Any] = {"clients": 1e8, "parameters": 1e7, "per_day": 1, "seconds": TIME}
    first = fastagg.plan("FedBuff", **ask)
    assert first.first == "log" and first.leaves > 40 and "leaves" in first.change
    assert first.rate == pytest.approx(1e9 / 4e7, rel=0.01)
    each = fastagg.plan("FedBuff", **{**ask, "clients": 1e8 / first.leaves})
    assert each.change == "", "what one of so many leaves takes in fits"
    without = fastagg.plan("FedBuff", **ask, durability="none")
    assert without.first == "network in" and without.needs["log"].needed == 0
    slow = fastagg.plan("FedBuff", **{**ask, "seconds": (1.0, 0.0)}, network="1TB", writes="1TB")
    assert slow.first == "processor"


def test_versions_that_clients_train_on_are_counted() -> None:
    ask: dict[str, Any] = {"clients": 1000, "parameters": 1e6, "seconds": TIME}
    few, many = (fastagg.plan("FedAsync", **ask, in_flight=count) for count in (1, 101))
    assert many.needs["memory"].needed - few.needs["memory"].needed == pytest.approx(100 * 4e6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rule": "FedBluff"}, "rule: expected one of"),
        ({"clients": 0}, "clients"),
        ({"parameters": -1}, "parameters"),
        ({"per_day": float("nan")}, "per_day"),
        ({"memory": "much"}, "memory"),
        ({"durability": "ever"}, "durability"),
        ({"buffer": 3}, "buffer"),
    ],
)
def test_arguments_that_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(fastagg.FastaggError, match=says):
        fastagg.plan(**{"rule": "FedBuff", "clients": 10, "parameters": 10, "seconds": TIME, **given})


def test_on_the_command_line() -> None:
    testing = pytest.importorskip("typer.testing")
    from fastagg.cli.app import app

    ask = ["plan", "--clients", "1e8", "--parameters", "1e7", "--set", "buffer_size=9", "--durability", "none"]
    ask += ["--network", "1MB"]  # a slow processor is faster than that
    done = testing.CliRunner().invoke(app, ask)
    assert done.exit_code == 0 and "network in ends first" in done.stdout and "leaves" in done.stdout
