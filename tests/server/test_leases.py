"""Tasks that nobody answers end, clients that went away are forgotten, and an answer to a version that a restart has
lost is told from one to the version that has its number now."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from support.book import Book, Task
from support.models import same

import fastagg
from fastagg import UnknownClient, UnknownVersion

D = 8


def later(server: fastagg.Server, seconds: float) -> None:
    """So many seconds pass on the server's clock."""
    inside.pass_time(server, seconds)


def ones(size: int = D) -> torch.Tensor:
    return torch.ones(size)


def _steps(server: fastagg.Server, busy: int | str) -> None:
    for _ in range(3):
        server.dispatch(busy), server.receive(busy, ones())


ENDS: dict[str, tuple[Callable[[fastagg.Server, Any, Any], object], str]] = {
    "lease": (lambda server, late, busy: later(server, 61.0), r"has expired.*\(lease\)"),
    "max_delay": (lambda server, late, busy: _steps(server, busy), r"has expired.*\(max_delay\)"),
    "forget": (lambda server, late, busy: server.forget(late, 0), "was forgotten, or has expired"),
    "expire": (lambda server, late, busy: server.expire(before=1), "was forgotten, or has expired"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("others", [0, 1])  # its other open tasks: without one it is forgotten, too
@pytest.mark.parametrize("clients", [None, 3])
@pytest.mark.parametrize("told", ["nothing", "version", "task"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_late_answer_is_told_how_its_task_ended(
    how: str, others: int, clients: int | None, told: str, restarts: bool, tmp_path: Path
) -> None:
    def make() -> fastagg.Server:
        return fastagg.ASGD(torch.zeros(D), lr=0.1, lease=60.0, max_delay=2, num_clients=clients)

    late, busy = (0, 1) if clients else ("late", "busy")
    end, says = ENDS[how]
    server = fastagg.open(tmp_path / "folder", make) if restarts else make()
    task = server.dispatch(late)
    end(server, late, busy)
    server.expire()
    if others:
        server.dispatch(busy), server.receive(busy, ones())
        server.dispatch(late)
    if restarts:
        server.close()
        server, says = fastagg.open(tmp_path / "folder", make), "was forgotten, or has expired"
    given = {"nothing": {}, "version": {"version": 0}, "task": {"task": task.id}}[told]
    if told == "nothing" and others:
        assert server.receive(late, ones()).task != task.id
        return
    before = server.state_dict()
    with pytest.raises((UnknownClient, UnknownVersion), match=says):
        server.receive(late, ones(), **given)
    assert same(server.state_dict(), before)
    server.close()


@pytest.mark.parametrize("jump", [-1e9, -3600.0, 3600.0, 1e9])
def test_a_clock_that_jumps_ends_tasks_early_or_late_and_nothing_else(jump: float, tmp_path: Path) -> None:
    """The wall clock is not read at all. Should the steady clock jump, no answered task is lost."""
    server = fastagg.open(tmp_path / "state", lambda: fastagg.FedAsync(torch.zeros(D), lease=60.0))
    for client in ("before", "silent"):
        server.dispatch(client)
    later(server, jump)
    if jump < 0:
        assert server.receive("before", ones()).applied
    else:
        with pytest.raises((UnknownVersion, UnknownClient)):
            server.receive("before", ones())
    assert server.receive("after", ones(), server.dispatch("after").version).applied
    later(server, 61.0)
    server.expire()
    assert server.memory()["versions"] == 0 or jump < 0
    later(server, 60.0 - min(jump, 0.0))  # what a jump back put off ends in the end
    server.expire()
    assert server.memory()["versions"] == 0
    state, version = server.flat.clone(), server.version
    server.close()
    with fastagg.open(tmp_path / "state", lambda: fastagg.FedAsync(torch.zeros(D), lease=60.0)) as again:
        assert again.version == version and torch.equal(again.flat, state)


def test_clients_that_never_come_back_leave_nothing() -> None:
    server = fastagg.FedAsync(torch.zeros(D), lease=10.0)
    size = []
    for client in range(60_000):
        server.dispatch(client)
        if client % 2:
            server.receive(client, ones())
        later(server, 0.01)  # a thousand within a lease
        if client % 10_000 == 9_999:
            size.append(server.memory()["clients"] + server.memory()["versions"])
            assert inside.known(server) <= 1_001
    assert max(size[1:]) <= 1.05 * min(size[1:])
    assert size[-1] < 550_000


def test_numbered_clients_are_not_forgotten() -> None:
    server = fastagg.ACE(torch.zeros(D), lr=0.1, num_clients=2, warmup="partial", lease=5.0)
    server.dispatch(0)
    server.receive(0, ones())
    server.dispatch(1)
    later(server, 6.0)
    assert server.expire() == 1
    with pytest.raises(UnknownVersion, match="answered everything"):
        server.receive(0, ones())
    server.dispatch(0)
    assert server.receive(0, ones()).applied


# -- answers to another life -------------------------------------------------------------------------------------------


def test_lives_are_told_apart_for_many_restarts() -> None:
    server = fastagg.ASGD(torch.zeros(D), lr=0.1)
    tasks = {}
    for restart in range(70):
        tasks[server.version] = server.dispatch(f"client {restart}")
        server.receive("other", ones(), server.dispatch("other").version)
        if restart % 3:
            server.load_state_dict(server.state_dict())
    assert len(server.state_dict()["lives"]) <= 64
    for version in sorted(tasks)[-20:]:
        task = tasks[version]
        assert server.receive(task.client, ones(), version, incarnation=task.incarnation).delay > 0


@pytest.mark.parametrize("seed", range(60))
def test_tasks_end_and_clients_are_forgotten_as_in_a_book(seed: int) -> None:
    """``hand_on`` sends old versions late, a client may be sent a version twice, and leases begin anew with a state."""
    draw = random.Random(seed)
    limits = {"lease": draw.choice((None, 10.0)), "max_delay": draw.choice((None, 2, 5))}
    limits["max_open_per_client"] = draw.choice((None, 1, 2))
    server = fastagg.FedBuff(torch.zeros(D), lr=0.1, buffer_size=3, answers_per_step=None, **limits)
    book, sent, ended = Book(limits), list[tuple[fastagg.Dispatch, Task]](), 0

    def send(client: int, wanted: int, of: Callable[[], fastagg.Dispatch]) -> None:
        try:
            task = of()
        except fastagg.Busy:
            assert not book.has_room(client) and all(other.version != wanted for other in book.owed(client))
        else:
            sent.append((task, book.send(client, wanted, np.zeros(D), None)))

    for _ in range(200):
        client, seconds, what = draw.randrange(6), draw.choice((0.0, 0.5, 3.0)), draw.random()
        later(server, seconds)
        book.time += seconds
        ended += book.expire()
        task, own = draw.choice(sent) if sent else (None, None)
        if task is None or what < 0.3:
            send(client, book.version, lambda client=client: server.dispatch(client))
        elif own.end:
            with pytest.raises((UnknownVersion, UnknownClient, fastagg.AlreadyCounted)):
                server.hand_on(task, client)
            with pytest.raises((UnknownVersion, UnknownClient, fastagg.AlreadyCounted)):
                server.receive(own.client, ones(), task=task.id)
        elif what < 0.6:
            send(client, own.version, lambda task=task, client=client: server.hand_on(task, client))
        else:
            book.version = server.receive(own.client, ones(), task=task.id).version
            book.end(own)
        if draw.random() < 0.3:
            server.expire()
            ended += book.expire()
            found = inside.known(server), inside.engine(server).open_tasks, inside.engine(server).expired
            assert found == (len(book.last), len(book.tasks), ended)
            if draw.random() < 0.2:
                server.load_state_dict(server.state_dict())
                book.renew()
                ended = 0


def test_a_task_is_handed_on_only_while_it_is_open(tmp_path: Path) -> None:
    def make(size: int = D) -> fastagg.Server:
        return fastagg.Server(torch.zeros(size), fastagg.Single(), fastagg.SGD(0.1), fastest_steps=20)

    server = make()
    server.save(tmp_path / "before")
    answered = server.dispatch("ann")
    server.receive("ann", ones() * 0, task=answered.id)
    server.dispatch("ann", speed=2.5), server.dispatch("bob", speed=0.25)
    assert server.hand_on(server.dispatch("ann"), "bob").local_steps == server.dispatch("bob").local_steps == 2
    lost = fastagg.load(tmp_path / "before")
    lost.dispatch("ann")
    for on, task in (server, answered), (server, make(D + 1).dispatch("ann")), (lost, answered):
        with pytest.raises((fastagg.AlreadyCounted, fastagg.StaleIncarnation)):
            on.hand_on(task, "cid")
