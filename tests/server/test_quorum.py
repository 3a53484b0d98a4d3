"""Rounds that end some time after they have enough updates: when, who takes the step, and what a replay makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside

import fastagg

SIZE = 3000


def make(size: int | None = 10, **more: Any) -> fastagg.Server:
    return fastagg.Server(
        torch.zeros(SIZE), fastagg.Buffer(size, at_least=3, grace=5.0, **more), fastagg.Momentum(lr=1.0)
    )


def answer(server: fastagg.Server, client: int, number: float = 1.0) -> fastagg.Receipt:
    task = server.dispatch(client)
    return server.receive(client, torch.full((SIZE,), number), task.version)


def wait(server: fastagg.Server, seconds: float) -> None:
    inside.pass_time(server, seconds)  # the clock of this process


@pytest.mark.parametrize("call", ["dispatch", "receive", "receive_many", "receive_model", "partial", "close_round"])
def test_the_next_call_after_the_window_takes_the_step(call: str) -> None:
    server = make()
    late = server.dispatch("late")
    for client in range(2):
        answer(server, client)
    wait(server, 100.0)
    answer(server, 2, 4.0)  # the third: the window begins now, and not with the first
    wait(server, 4.0)
    assert server.close_round(if_due=True) is None
    server.dispatch("early")
    assert server.version == 0
    wait(server, 1.5)
    assert server.version == 0  # nobody has called
    if call == "dispatch":
        assert server.dispatch("new").version == 1
    elif call == "close_round":
        assert server.close_round(if_due=True) == 1.0
    elif call == "partial":
        assert server.receive_partial("late", fastagg.Partial(torch.ones(SIZE), 2, 2.0)).delay == 1
    elif call == "receive_model":
        assert server.receive_model(late, torch.ones(SIZE)).delay == 1
    elif call == "receive_many":
        (receipt,) = server.receive_many([("late", torch.ones(SIZE))])
        assert receipt.delay == 1 and not receipt.applied
    else:
        assert server.receive("late", torch.ones(SIZE)).delay == 1
    assert server.version == 1 and torch.equal(server.flat, torch.full((SIZE,), 2.0))
    assert server.close_round(if_due=True) is None  # a new round


def test_a_round_that_fills_up_or_is_closed_begins_a_new_window() -> None:
    server = make(4)
    for client in range(3):
        answer(server, client)
    wait(server, 4.0)
    assert answer(server, 3).applied
    for client in range(3):
        answer(server, client)
    wait(server, 4.0)
    assert server.dispatch(9).version == 1
    assert server.close_round() == 1.0 and server.version == 2
    wait(server, 10.0)
    assert server.dispatch(9).version == 2


def test_a_refused_answer_has_no_part_in_it() -> None:
    server = make()
    for client in range(3):
        answer(server, client)
    server.dispatch("bad")
    wait(server, 6.0)
    with pytest.raises(fastagg.NonFiniteUpdate):
        server.receive("bad", torch.full((SIZE,), float("nan")))
    assert server.version == 1 and torch.equal(server.flat, torch.ones(SIZE))


def test_sums_of_three_and_four_into_a_hundred_never_wait_for_ever() -> None:
    """26 sums and then nothing: without the window the last updates of a run wait until close_round()."""
    for overflow in ("take", "close"):
        server = fastagg.FedBuff(
            torch.zeros(SIZE),
            buffer_size=100,
            at_least=50,
            grace=1.0,
            overflow=overflow,  # type: ignore[arg-type]
        )
        counted = 0
        for turn in range(26):
            task = server.dispatch(turn % 5)
            count = 3 + turn % 2
            counted += count
            server.receive_partial(turn % 5, fastagg.Partial(torch.ones(SIZE), count, float(count)), task.version)
        assert server.version == 0 and counted == 91
        wait(server, 2.0)
        assert server.dispatch(0).version == 1


def test_a_synchronous_round_and_its_deterministic_form() -> None:
    for deterministic in (False, True):
        server = fastagg.FedAvg(
            torch.zeros(SIZE), clients_per_round=5, at_least=2, grace=1.0, deterministic=deterministic
        )
        tasks = [server.dispatch(client) for client in range(5)]
        for task in tasks[:2]:
            server.receive_model(task, torch.full((SIZE,), 2.0), 10)
        wait(server, 2.0)
        with pytest.raises(fastagg.UnknownVersion):  # its round is over
            server.receive_model(tasks[2], torch.ones(SIZE), 10)
        assert server.version == 1 and torch.equal(server.flat, torch.full((SIZE,), 2.0))


@pytest.mark.parametrize("durability", ["step", "arrival", "none"])
def test_a_replay_needs_no_clock(tmp_path: Path, durability: Any) -> None:
    with fastagg.open(tmp_path / "state", make, durability=durability) as server:
        for turn in range(20):
            answer(server, turn % 4, float(turn))
            wait(server, 2.0)
        server.flush()
        flat, version, held = server.flat.clone(), server.version, server.state_dict()["direction"]["versions"]
        assert version > 2
        shutil.copytree(tmp_path / "state", tmp_path / "killed")
    with fastagg.open(tmp_path / "killed", make) as again:
        assert (again.version, again.state_dict()["direction"]["versions"]) == (version, held)
        assert torch.equal(again.flat, flat)
        for client in range(3):
            answer(again, client)
        assert again.version == version
        wait(again, 6.0)
        assert again.dispatch(7).version == version + 1


@pytest.mark.parametrize("way", ["load_state_dict", "load", "open"])
def test_after_a_restart_the_window_begins_again(way: str, tmp_path: Path) -> None:
    """When the server is there again, and not with its first call."""
    server = fastagg.open(tmp_path / "state", make) if way == "open" else make()
    for client in range(3):
        answer(server, client)
    wait(server, 4.0)
    if way == "load_state_dict":
        again = make()
        again.load_state_dict(server.state_dict())
    elif way == "load":
        server.save(tmp_path / "server.pt")
        again = fastagg.load(tmp_path / "server.pt")
    else:
        server.close()
        again = fastagg.open(tmp_path / "state", make)
    wait(again, 4.0)
    assert again.dispatch(5).version == 0
    wait(again, 1.0)
    assert again.dispatch(5).version == 1
    again.close()
