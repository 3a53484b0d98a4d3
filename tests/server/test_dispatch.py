"""Tasks that go out and receipts that come back."""

import copy
import ctypes
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import inside
from support.models import Residual, Tied, same
from torch import nn

import fastagg
from fastagg.server.dispatch import Dispatch, Receipt


def models() -> dict[str, Any]:
    torch.manual_seed(0)
    half = {"w": torch.randn(3), "half": torch.randn(4).half(), "bn.running_var": torch.ones(2), "n": torch.tensor(3)}
    return {
        "module": Residual(), "tied": Tied(), "halves": Residual().half(), "state_dict": half,
        "list": [torch.randn(3).numpy(), torch.randn(2, 2).bfloat16()], "flat": torch.randn(5),
        "float64": torch.randn(5, dtype=torch.float64),
    }  # fmt: skip


FORMS = list(models())


def arrays(model: Any) -> list[Any]:
    model = model.state_dict() if isinstance(model, nn.Module) else model
    return list(model.values()) if isinstance(model, dict) else model if isinstance(model, list) else [model]


@pytest.mark.parametrize("form", FORMS)
def test_writing_into_a_task_changes_nobody_elses_model(form: str) -> None:
    given = models()[form]
    server = fastagg.FedBuff(given, buffer_size=1)
    task, other = server.dispatch(0), server.dispatch(1)
    before, sent = copy.deepcopy(server.state_dict()), copy.deepcopy(task.views)
    assert same(task.params, sent)
    for array in map(torch.as_tensor, arrays(task.params) + arrays(given)):
        array.add_(1) if array.dtype != torch.bool else array.logical_not_()
    assert not same(task.params, sent)  # it is the client's own, and stays what it made of it
    assert same(server.state_dict(), before)
    assert same(other.params, sent) and same(task.views, sent) and same(server.parameters(), sent)
    handed = task.for_client(2, 5)
    assert same(handed.params, sent) and (handed.client, handed.local_steps, handed.control) == (2, 5, task.control)


def test_params_are_copied_once_and_views_not_at_all() -> None:
    server = fastagg.FedBuff(Tied())
    task = server.dispatch(0)
    assert task.params is task.params and task.views is task.views
    assert task.views["embed.weight"].data_ptr() == task.flat.data_ptr() == server.flat.data_ptr()
    assert task.params["embed.weight"].data_ptr() != task.flat.data_ptr()
    assert task.params["embed.weight"].data_ptr() == task.params["out.weight"].data_ptr()  # tied in the copy as well


HOLDERS: dict[str, Callable[[fastagg.Dispatch], Any]] = {
    "task": lambda task: task,
    "flat": lambda task: task.flat,
    "a view": lambda task: next(iter(task.views.values())),
    "a slice": lambda task: task.flat[3:5],
    "numpy": lambda task: task.flat.numpy(),
    "memoryview": lambda task: memoryview(task.flat.numpy()),
    "dlpack": lambda task: torch.utils.dlpack.to_dlpack(task.flat),
    "storage": lambda task: task.flat.untyped_storage(),
    "another task": lambda task: task.for_client(7, None),
}  # fmt: skip


@pytest.mark.parametrize("rule", ["ASGD", "FADAS", "ACE"])
@pytest.mark.parametrize("what", [*HOLDERS, "nothing"])
def test_a_step_is_in_place_only_if_nobody_holds_the_version(what: str, rule: str) -> None:
    settings: dict[str, Any] = {"num_clients": 1} if rule == "ACE" else {"buffer_size": 1} if rule == "FADAS" else {}
    server = getattr(fastagg, rule)({"a": torch.zeros(20_000), "b": torch.zeros(7)}, lr=1.0, **settings)
    for _ in range(2):  # version 0 lies in memory of torch
        server.dispatch(0)
        server.receive(0, torch.full((20_007,), 0.5))
    address, before = server.flat.data_ptr(), server.flat.clone()
    held = HOLDERS[what](server.dispatch(0)) if what in HOLDERS else server.dispatch(0).version
    gc.collect()
    server.receive(0, torch.full((20_007,), 0.5), still=True)
    assert (server.flat.data_ptr() == address) == (what == "nothing")
    assert not torch.equal(server.flat, before)
    if what in HOLDERS:
        at = (ctypes.c_float * 20_007).from_address(address)
        assert np.array_equal(np.frombuffer(at, np.float32), before.numpy())  # the holder's memory
    del held


def test_a_task_says_what_it_is() -> None:
    server = fastagg.AsyncFedED(torch.zeros(3), lam=1.0, eps=1.0, local_steps=7)
    task = server.dispatch("a")
    assert repr(task) == "Dispatch(client='a', version=0, local_steps=7)"
    assert repr(fastagg.FedBuff(torch.zeros(3)).dispatch(4)) == "Dispatch(client=4, version=0)"
    again = server.dispatch("a")
    assert task != again and task == task and len({task, again}) == 2
    with pytest.raises(AttributeError):
        task.parameters  # noqa: B018


def test_state_and_copies_of_tasks() -> None:
    server = fastagg.FedBuff(Residual())
    task = server.dispatch("a")
    task.params["head.bias"].zero_()  # what a client does to its copy is no part of the task
    for again in (
        Dispatch.from_state(task.state_dict(), server.layout),
        copy.copy(task),
        copy.deepcopy(task),
        pickle.loads(pickle.dumps(task)),
    ):
        assert (again.client, again.version, again.local_steps, again.control) == ("a", 0, None, None)
        assert same(again.views, task.views) and torch.equal(again.flat, task.flat)
    assert same(Dispatch.from_state(task.state_dict(), server.layout).params, task.views)
    assert task.state_dict()["model"][0] is task.flat


# -- receipts


def test_receipts_are_equal_by_value() -> None:
    one = Receipt("a", True, 3, 1, 0.5, 2.0, 1.0)
    assert (one.client, one.applied, one.version, one.delay) == ("a", True, 3, 1)
    assert (one.step_size, one.update_norm, one.weight) == (0.5, 2.0, 1.0)
    assert one == Receipt("a", True, 3, 1, 0.5, 2.0, 1.0) and len({one, Receipt("a", True, 3, 1, 0.5, 2.0, 1.0)}) == 1
    fields = ("a", True, 3, 1, 0.5, 2.0, 1.0)
    for i, other in enumerate(("b", False, 4, 2, None, 2.5, 0.0)):
        assert one != Receipt(*fields[:i], other, *fields[i + 1 :])  # type: ignore[arg-type]
    assert one != fields
    assert repr(one) == (
        "Receipt(client='a', applied=True, version=3, delay=1, step_size=0.5, update_norm=2.0, weight=1.0)"
    )
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError, match="unknown"):
        one.unknown  # noqa: B018


def test_an_update_may_be_the_tasks_own_memory() -> None:
    """An adapter that trains in place on ``params`` and sends the difference, as small clients do."""
    server = fastagg.FedBuff(nn.Linear(2, 2), buffer_size=1)
    task = server.dispatch(0)
    task.params["weight"].add_(1.0)
    server.receive_model(task, task.params)
    assert torch.equal(server.parameters()["weight"], task.params["weight"])
    assert torch.equal(server.parameters()["bias"], task.views["bias"])


SIZE = 3000


def make(size: int | None = 10, **more: Any) -> fastagg.Server:
    return fastagg.Server(
        torch.zeros(SIZE), fastagg.Buffer(size, at_least=3, grace=5.0, **more), fastagg.Momentum(lr=1.0),
        answers_per_step=None,
    )  # fmt: skip


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
