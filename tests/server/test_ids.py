"""Tasks have ids, so that an answer counts once, however often it comes."""

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.models import same

import fastagg
from fastagg import AlreadyCounted, StaleIncarnation, UnknownVersion

D = 8
Server = fastagg.Server
Take = Callable[[Server, fastagg.Dispatch], Any]


def make() -> Server:
    return fastagg.FedBuff(torch.zeros(D), buffer_size=3)


def ones() -> torch.Tensor:
    return torch.ones(D)


def stream(server: Server, task: fastagg.Dispatch) -> Any:
    with server.receiving(task.client, task=task.id) as upload:
        upload.write(ones().numpy().tobytes())
    return upload.receipt


def partial(server: Server, task: fastagg.Dispatch) -> Any:
    return server.receive_partial(task.client, fastagg.Partial(ones(), 1, 1.0), task=task.id)


def many(server: Server, task: fastagg.Dispatch) -> Any:
    return server.receive_many([(task.client, ones(), None, None, task.id)])[0]


def many_in_half(server: Server, task: fastagg.Dispatch) -> Any:  # a list, which Python reads
    return server.receive_many([(task.client, [ones()], task.version, None, task.id)])[0]


WAYS: dict[str, Take] = {
    "receive": lambda server, task: server.receive(task.client, ones(), task=task.id),
    "receive, read by Python": lambda server, task: server.receive(task.client, ones(), kind="delta", task=task.id),
    "receive, with all": lambda server, task: server.receive(
        task.client, ones(), task.version, incarnation=task.incarnation, task=task.id
    ),
    "receive_many": many,
    "receive_many, read by Python": many_in_half,
    "receive_model": lambda server, task: server.receive_model(task, task.flat + 1),
    "models": lambda server, task: server.receive_many([fastagg.Answer.to(task, task.flat + 1)])[0],
    "receive_partial": partial,
    "receiving": stream,
}


def outcome(take: Take, server: Server, task: fastagg.Dispatch) -> Any:
    try:
        return take(server, task)
    except fastagg.FastaggError as error:
        return error


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_comes_again_touches_no_other_task(way: str) -> None:
    """Also after a restart, which knows what was counted, and no task that was sent after the state was saved."""
    server, take = make(), WAYS[way]
    first, other = server.dispatch("ann"), server.dispatch("bob")
    receipt = outcome(take, server, first)
    assert isinstance(receipt, fastagg.Receipt)
    second = server.dispatch("ann")  # at the same version
    assert second.version == first.version and second.id != first.id
    before = server.state_dict()
    for _ in range(2):
        error = outcome(take, server, first)
        assert isinstance(error, AlreadyCounted) and isinstance(error, UnknownVersion)
        assert (error.version, error.applied) == (receipt.version, receipt.applied)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.version, again.applied) == (str(error), error.version, error.applied)
    assert same(server.state_dict(), before)
    later, lost = make(), server.dispatch("eve")
    later.load_state_dict(before)
    later.dispatch("eve")
    assert isinstance(outcome(take, server, second), fastagg.Receipt)  # the client's real answer
    assert [type(outcome(take, later, task)) for task in (first, other, second, lost)] == [
        AlreadyCounted, fastagg.Receipt, fastagg.Receipt, StaleIncarnation,
    ]  # fmt: skip


def test_ids_are_unique_and_a_task_that_is_sent_again_is_the_same() -> None:
    server = make()
    seen: set[int] = set()
    for life in range(5):
        for client in range(100):
            task = server.dispatch(client)
            assert task.id is not None and 0 < task.id < 2**63 and task.id not in seen
            assert server.dispatch(client).id == task.id
            seen.add(task.id)
            handed = server.hand_on(task, f"{life} {client}")
            assert handed.id not in seen and handed.id is not None
            seen.add(handed.id)
            server.receive(client, ones(), task=task.id)
        after = make()
        after.load_state_dict(server.state_dict())
        server = after
    one, other = copy.deepcopy(server), copy.deepcopy(server)
    assert len({each.dispatch("new").id for each in (server, one, other)}) == 3


def test_what_is_remembered_ends() -> None:
    server = fastagg.FedAsync(torch.zeros(2))
    first = server.dispatch("ann")
    server.receive("ann", torch.ones(2), task=first.id)
    given_up = server.dispatch("bob")
    server.forget("bob")
    with pytest.raises(UnknownVersion, match="forgotten") as error:
        server.receive("bob", torch.ones(2), task=given_up.id)
    assert not isinstance(error.value, AlreadyCounted)
    for i in range(16_384):
        with_facts = pytest.raises(AlreadyCounted, match="counted already")
        if i in (0, 16_382):
            with with_facts:
                server.receive("ann", torch.ones(2), task=first.id)
        task = server.dispatch("eve")
        server.receive("eve", torch.ones(2), task=task.id)
    with pytest.raises(AlreadyCounted, match="longer ago") as error:
        server.receive("ann", torch.ones(2), task=first.id)
    assert error.value.version is None and error.value.applied is None
    state = server.state_dict()
    assert len(state["ids"]["ended"]) == 16_384 and state["ids"]["ended"][-1] == task.id
    again = fastagg.FedAsync(torch.zeros(2))
    again.load_state_dict(state)
    after = again.state_dict()["ids"]
    assert torch.equal(after["ended"], state["ids"]["ended"])
    assert torch.equal(after["outcomes"], state["ids"]["outcomes"])
    with pytest.raises(AlreadyCounted, match="longer ago"):
        again.receive("ann", torch.ones(2), task=first.id)


def test_of_many_threads_one_answer_counts() -> None:
    server = fastagg.FedBuff(torch.zeros(4096), buffer_size=10**6)
    outcomes: list[Any] = []
    for _ in range(20):
        task = server.dispatch("ann")
        begin = threading.Barrier(4)

        def answer(task: fastagg.Dispatch = task, begin: threading.Barrier = begin) -> None:
            begin.wait()
            for _ in range(5):
                outcomes.append(outcome(lambda s, t: s.receive(t.client, torch.ones(4096), task=t.id), server, task))
                server.dispatch("ann")

        with ThreadPoolExecutor(4) as pool:
            for end in [pool.submit(answer) for _ in range(4)]:
                end.result()
        server.forget("ann")
    counted = [one for one in outcomes if isinstance(one, fastagg.Receipt)]
    assert len(counted) == 20 and len(outcomes) == 400
    assert all(isinstance(one, AlreadyCounted) for one in outcomes if one not in counted)


def test_an_upload_is_for_the_task_with_which_it_began() -> None:
    server = make()
    server.dispatch("ann")
    with pytest.raises(AlreadyCounted), server.receiving("ann") as upload:
        server.receive("ann", ones())
        server.dispatch("ann")
        upload.write(ones().numpy().tobytes())
    assert server.receive("ann", ones()).version == 0


# -- offsets


def test_an_offset_is_stored_with_its_answer() -> None:
    server = make()
    assert server.offset is None
    tasks = [server.dispatch(client) for client in range(4)]
    server.receive(0, ones(), task=tasks[0].id, offset=0)
    assert server.offset == 0
    with pytest.raises(fastagg.NonFiniteUpdate):
        server.receive(1, ones() / 0, task=tasks[1].id, offset=1)
    assert server.offset == 0  # a refused answer stores nothing; the next one passes over it
    server.receive(2, ones(), task=tasks[2].id, offset=2)
    before = server.state_dict()
    for offset in (0, 1, 2):
        with pytest.raises(AlreadyCounted, match="go on behind it"):
            server.receive(3, ones(), offset=offset)
    assert same(server.state_dict(), before)
    server.receive(3, ones())  # without one, it stays
    assert server.offset == 2
    later = make()
    later.load_state_dict(before)
    assert later.offset == 2


def test_every_method_takes_an_offset() -> None:
    server = fastagg.FedBuff(torch.zeros(D), buffer_size=100)
    tasks = [server.dispatch(client) for client in range(12)]
    found = server.receive_many([(i, ones(), None, None, tasks[i].id, offset) for i, offset in enumerate((5, 6, 6))])
    assert [type(one).__name__ for one in found] == ["Receipt", "Receipt", "AlreadyCounted"]
    places = ((2, 7), (3, 7), (4, 6), (5, 9))
    given = [fastagg.Answer.to(tasks[i], ones(), offset=offset) for i, offset in places]
    assert [type(one).__name__ for one in server.receive_many(given)] == [
        "Receipt", "AlreadyCounted", "AlreadyCounted", "Receipt",
    ]  # fmt: skip
    server.receive_model(tasks[6], ones(), offset=10)
    with server.receiving(7, offset=11) as upload:
        upload.write(ones().numpy().tobytes())
    with pytest.raises(AlreadyCounted):
        server.receiving(8, offset=11)
    server.receive_partial(8, fastagg.Partial(ones(), 1, 1.0), offset=2**63 - 1)
    assert server.offset == 2**63 - 1
