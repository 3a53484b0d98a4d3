"""Private servers: no client takes part more often, or sooner, than its limits say, whatever happens in between."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import fastagg


def made(separation: int = 2, most: int | None = 3, buffer: int = 2) -> fastagg.Server:
    privacy = fastagg.Gaussian(1.0, 1.0, min_separation=separation, max_participations=most)
    return fastagg.FedBuff(torch.zeros(3), buffer_size=buffer, privacy=privacy, lease=1e9)


def fill(server: fastagg.Server, count: int, first: int) -> None:
    for client in range(first, first + count):
        server.dispatch(client)
        server.receive(client, torch.ones(3))


@pytest.mark.parametrize("durable", [False, True])
def test_no_random_schedule_breaks_the_limits(durable: bool, tmp_path: Path) -> None:
    for seed in range(4 if durable else 20):
        draw = random.Random(seed)
        separation, most, buffer = draw.randint(1, 4), draw.choice([None, 1, 2, 3]), draw.randint(1, 3)
        path = tmp_path / str(seed)

        def make(settings: Any = (separation, most, buffer)) -> fastagg.Server:
            return made(*settings)

        server = fastagg.open(path, make, "none") if durable else make()
        clients: list[int | str] = [0, 1, 2, "ann", "bob", 2**64 - 1]
        taken: dict[int | str, list[int]] = {client: [] for client in clients}
        owed: dict[int | str, set[int]] = {client: set() for client in clients}
        for _ in range(80):
            client, act = draw.choice(clients), draw.random()
            if act < 0.5:
                mine, now = taken[client], server.version
                wrong = bool(owed[client] - {now}) or len(mine) >= (most or 99) or mine[-1:] > [now - separation]
                before = str(server.state_dict())
                source = draw.choice([one for one in clients if now in owed[one]] or [None])
                try:
                    if source is None or act < 0.4:
                        assert server.dispatch(client).version == now
                    else:
                        server.hand_on(server.dispatch(source), client)
                    assert not wrong
                    owed[client].add(now)
                except fastagg.TooSoon as error:
                    said = {"not answered": owed[client] - {now}, "taken part": len(mine) == most, "took part": mine}
                    assert wrong and any(words in str(error) and why for words, why in said.items())
                    assert str(server.state_dict()) == before
            elif act < 0.85:
                if owed[client]:
                    with pytest.raises(fastagg.NonFiniteUpdate):  # which does not count
                        server.receive(client, torch.full((3,), float("inf")), max(owed[client]))
                    taken[client].append(server.version)
                    server.receive(client, torch.ones(3), owed[client].pop())
            elif act < 0.92:
                if owed[client] or taken[client]:
                    try:
                        server.forget(client)
                    except fastagg.UnknownClient:
                        assert not owed[client]
                    owed[client].clear()
            elif durable:
                server.close()
                server = fastagg.open(path, make, "none")
            else:
                server.load_state_dict(server.state_dict())
        for mine in taken.values():
            assert len(mine) <= (most or 99)
            assert all(later - earlier >= separation for earlier, later in itertools.pairwise(mine))
        if durable:
            server.close()


def test_damaged_participations_are_refused() -> None:
    server = made()
    fill(server, 3, 0)
    whole = server.state_dict()
    for name, wrong in (
        ("times", [0, 1, 1]), ("step", [99, 0, 0]), ("version", [99, 0, 0]), ("in_step", [2, 1, 1]),
        ("clients", [0, 0, 1]), ("times", [1]),
    ):  # fmt: skip
        state = server.state_dict()
        given: Any = wrong if name == "clients" else torch.tensor(wrong)
        state["tasks"]["participation"] = {**state["tasks"]["participation"], name: given}
        with pytest.raises(fastagg.CheckpointError):
            made().load_state_dict(state)
    made().load_state_dict(whole)


def test_a_state_without_a_count_of_answers_is_refused_where_they_count() -> None:
    saved, limited = (fastagg.FedBuff(torch.zeros(3), buffer_size=3, answers_per_step=most) for most in (None, 1))
    fill(saved, 1, 0)
    with pytest.raises(fastagg.CheckpointError, match="does not say who has answered"):
        limited.load_state_dict(saved.state_dict())
    assert limited.version == 0
    saved.load_state_dict(limited.state_dict())


def test_a_simulated_client_waits_when_no_other_answer_of_it_could_count(tmp_path: Path) -> None:
    """8 clients with two answers each fill a step of 12, and nobody is sent a task in vain."""
    sim = pytest.importorskip("fastagg.sim")
    changes = {"run.uploads": 24, "data.clients": 8, "participation.concurrency": 3, "algorithm.buffer_size": 12}
    sim.run("fedbuff-digits-large", {**changes, "algorithm.answers_per_step": 2}, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["versions"], summary["uploads"]) == (2, 24), summary


@pytest.mark.parametrize("size", [3, 30_000])  # the large one is read once, by the step's own kernel
def test_a_refused_sum_leaves_none_of_its_clients_behind(size: int) -> None:
    server = fastagg.FedAvg(torch.zeros(size), clients_per_round=5000, weighting="uniform")
    server.dispatch("leaf")
    before = server.memory()["clients"]
    for turn in range(20):
        names = tuple(f"{turn} of {client}" for client in range(1000))
        with pytest.raises(fastagg.NonFiniteUpdate):
            server.receive_partial("leaf", fastagg.Partial(torch.full((size,), float("nan")), 1000, 1000.0, names))
    assert server.memory()["clients"] == before
    server.receive_partial("leaf", fastagg.Partial(torch.ones(size), 1000, 1000.0, names))
    assert server.memory()["clients"] > before


def test_a_leaf_names_no_client_whose_update_it_refused() -> None:
    leaf, nan = fastagg.Leaf(torch.zeros(3)), torch.full((3,), float("nan"))
    for client in ("ann", "bob"):
        with pytest.raises(fastagg.NonFiniteUpdate):
            leaf.fold(nan, client=client)
    leaf.fold(torch.ones(3), client="cy")
    leaf.fold(torch.ones(3), client="bob")
    with pytest.raises(fastagg.TooSoon):
        leaf.fold(torch.ones(3), client="bob")
    assert leaf.take().clients == ("cy", "bob")
