"""A call from within another call of the same thread: refused by name, with nothing changed, or as if it came later.

Every public method that changes a server is called inside every other: by a rule of the user's own within the step, by
a finalizer that runs there, by a signal handler that interrupts the call, and by the update itself while it is read.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.liars import Foreign
from support.models import same
from support.operations import CHANGES, READS

import fastagg
from fastagg import Receipt, Reentered
from fastagg.rules.directions.base import Arrival, DirectionState, Findings
from fastagg.server.engine import state_of
from fastagg.server.extension import Extension
from fastagg.storage.cell import SwapCell

D = 6
Call = Callable[[fastagg.Server], Any]


@dataclass(frozen=True)
class Hooked(fastagg.Staleness):
    """A policy that does something while the server weighs an update."""

    act: list[Callable[[], Any]] = field(default_factory=list)

    def weight(self, delay: int) -> float | None:
        for one in list(self.act):
            one()
        return 1.0


def ones() -> torch.Tensor:
    return torch.ones(D)


def made(hook: Hooked | None = None) -> fastagg.Server:
    """A server on which every method below has something to do."""
    server = fastagg.Server(torch.zeros(D), fastagg.Buffer(3), fastagg.SGD(1.0), hook or Hooked())
    for client in range(4):
        server.dispatch(client)
    return server


def does(name: str, client: int) -> Call:
    """An operation with a client of its own."""
    return lambda server: {**CHANGES, **READS}[name](server, client, 0)


# The calls that ask the policy, within whose step the hook runs.
STEPS = ("receive", "receive_many", "models", "receive_partial", "receiving")


def error_of(call: Call, server: fastagg.Server) -> BaseException | None:
    try:
        found = call(server)
    except fastagg.FastaggError as error:
        return error
    found = found[0] if isinstance(found, list) else found
    return found if isinstance(found, BaseException) else None


@pytest.mark.parametrize("outer", STEPS)
@pytest.mark.parametrize("inner", CHANGES)
@pytest.mark.parametrize("how", ["rule", "finalizer"])
def test_what_changes_a_server_is_refused_within_a_step(outer: str, inner: str, how: str) -> None:
    hook = Hooked()
    server, alone = made(hook), made()
    found: list[BaseException | None] = []

    def nested() -> None:
        found.append(error_of(does(inner, 2), server))

    class Dies:
        def __init__(self) -> None:
            self.me = self  # so that only the collector ends it

        def __del__(self) -> None:
            nested()

    def collected() -> None:
        Dies()
        gc.collect(0)

    hook.act.append(nested if how == "rule" else collected)
    mine, its = does(outer, 0)(server), does(outer, 0)(alone)
    hook.act.clear()
    assert {type(error) for error in found} == {Reentered}
    assert str(mine) == str(its)
    theirs = {key: value for key, value in alone.state_dict().items() if key not in ("lives", "ids")}
    assert same({key: value for key, value in server.state_dict().items() if key not in ("lives", "ids")}, theirs)
    assert error_of(does("receive", 3), server) is None  # it goes on


@pytest.mark.parametrize("outer", STEPS)
@pytest.mark.parametrize("inner", [name for name in READS if name != "deepcopy"])  # the hook holds the server
def test_a_server_can_be_read_within_a_step(outer: str, inner: str) -> None:
    hook = Hooked()
    server = made(hook)
    hook.act.append(lambda: does(inner, 2)(server))
    assert error_of(does(outer, 0), server) is None


@pytest.mark.parametrize("inner", [*CHANGES, *READS])
def test_an_update_that_calls_the_server_while_it_is_read(inner: str) -> None:
    """It is read before the step begins, so the call comes before."""
    server, alone = made(), made()
    found: list[BaseException | None] = []
    asked = Foreign(ones(), lambda: found.append(error_of(does(inner, 1), server)))
    receipt = server.receive(0, asked)
    error_of(does(inner, 1), alone)
    again = alone.receive(0, ones())
    assert set(map(type, found)) == {type(None)}
    if len(found) == 1:  # a reader may ask for the numbers twice
        assert receipt == again
        assert torch.equal(server.flat, alone.flat)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
@pytest.mark.parametrize("inner", ["dispatch", "receive", "close_round", "expire", "lr", "load_state_dict"])
def test_a_signal_handler_is_refused_or_comes_between_two_calls(inner: str) -> None:
    """Whatever the handler interrupts: the model holds what was counted, each update once."""
    server = fastagg.Server(torch.zeros(D), fastagg.Single(), fastagg.SGD(1.0), Hooked())
    counted, interrupted, errors = 0, 0, list[BaseException]()
    names = iter(range(10**9))

    def receive(one: fastagg.Server) -> Any:
        nonlocal counted
        client = f"handler {next(names)}"
        one.dispatch(client)
        receipt = one.receive(client, ones())
        counted += 1
        return receipt

    def handler(*_: Any) -> None:
        nonlocal interrupted
        interrupted += 1
        error = error_of(receive if inner == "receive" else does(inner, 0), server)
        if error is not None:
            errors.append(error)
        signal.setitimer(signal.ITIMER_REAL, 2e-4 if running else 0.0)

    running = True
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 2e-4)
    mine = 0
    try:
        for number in range(2000):
            server.dispatch(f"main {number}")
            try:
                server.receive(f"main {number}", ones())
            except fastagg.UnknownClient:  # the handler has loaded the state from before the dispatch
                assert inner == "load_state_dict"
                continue
            mine += 1
    finally:
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 10 and {type(error) for error in errors} <= {Reentered}
    if inner not in ("lr", "load_state_dict"):
        assert server.version == mine + counted
        assert torch.equal(server.flat, torch.full((D,), 1.0 * server.version))


def test_close_and_checkpoint_in_a_rule_are_refused_and_work_afterwards(tmp_path: Path) -> None:
    hook, found = Hooked(), list[BaseException | None]()
    server = fastagg.open(tmp_path / "state", lambda: made(hook))
    for call in (fastagg.Server.checkpoint, fastagg.Server.close):
        hook.act.append(lambda call=call: found.append(error_of(call, server)))  # type: ignore[misc]
    assert server.receive(0, ones()).durable
    hook.act.clear()
    assert [type(error) for error in found] == [Reentered, Reentered]
    server.checkpoint()
    server.close()
    with fastagg.open(tmp_path / "state", lambda: made(hook)) as again:
        assert again.receive(1, ones()).durable


def _many(server: fastagg.Server, tasks: list[fastagg.Dispatch]) -> Any:
    return server.receive_many([(task.client, ones(), None, None, task.id) for task in tasks])


def _models(server: fastagg.Server, tasks: list[fastagg.Dispatch]) -> Any:
    return server.receive_many([fastagg.Answer.to(task, task.params + 1.0) for task in tasks])


ROUTES: dict[str, tuple[Callable[[torch.Tensor], fastagg.Server], Callable[[fastagg.Server, Any], Any]]] = {
    "read by the engine": (lambda x: fastagg.ASGD(x, lr=0.1, max_waiting=1), _many),
    "read by Python": (lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, max_waiting=1), _many),
    "models": (lambda x: fastagg.FedBuff(x, buffer_size=1, max_waiting=1), _models),
    "models of a rule in Python": (lambda x: fastagg.AsyncFedED(x, lam=1.0, eps=1.0, max_waiting=1), _models),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", ["busy", "Ctrl-C"])
def test_answers_that_counted_have_their_receipts_whatever_comes_at_the_gate(
    route: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer counts, the second is refused. Meanwhile a thread is inside, and another one waits."""
    make, receive = ROUTES[route]
    server = make(torch.zeros(D))
    tasks = [server.dispatch(client) for client in "abc"]
    server.receive(tasks[1].client, ones())
    over, inside = threading.Event(), threading.Event()

    def hold() -> None:
        with server._engine.locked:
            inside.set()
            over.wait(120)

    threads = [threading.Thread(target=hold)]

    def interrupt() -> None:
        while not server._engine.callers_waiting:  # until the call under test is at the gate
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    class Refused(fastagg.errors.AlreadyCounted):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            if inside.is_set():
                return
            threads[0].start()
            inside.wait(120)
            if how == "busy":
                threads.append(threading.Thread(target=lambda: server.dispatch("waits")))
            else:
                threads.append(threading.Thread(target=interrupt))
            threads[1].start()
            while how == "busy" and not server._engine.callers_waiting:
                time.sleep(0.001)

    monkeypatch.setattr(fastagg.errors, "AlreadyCounted", Refused)
    try:
        if how == "busy":
            outcomes = receive(server, tasks)
        else:
            with pytest.raises(KeyboardInterrupt) as raised:
                receive(server, tasks)
            outcomes = raised.value.outcomes  # type: ignore[attr-defined]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    last = [fastagg.Busy] if how == "busy" else []
    assert [type(one) for one in outcomes] == [Receipt, Refused, *last]
    assert outcomes[0].task == tasks[0].id


def test_a_version_that_python_reads_within_a_step_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer may run wherever Python does, also when the step is planned in place."""
    server = fastagg.ASGD({"w": torch.zeros(D), "bn.running_mean": torch.zeros(2)}, lr=1.0)
    for client in range(5):
        server.dispatch(client)
    held: list[tuple[torch.Tensor, float]] = []
    plain = Extension.statistics

    def statistics(self: Extension, *given: Any) -> Any:
        held.append((server.flat, float(server.flat[0])))
        return plain(self, *given)

    monkeypatch.setattr(Extension, "statistics", statistics)
    for client in range(5):
        server.receive(client, {"w": -torch.ones(D), "bn.running_mean": torch.ones(2)})
    assert [value for _, value in held] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert all(bool((flat == value).all()) for flat, value in held)


class Dies:
    """A part of a state that tells when it is let go."""

    def __init__(self, told: Callable[[], object]) -> None:
        self.told = told

    def __del__(self) -> None:
        self.told()


class Stated(DirectionState):
    """A direction whose state is set in `where`."""

    asks = True
    told = SwapCell[Any]()

    def __init__(self, native: Any, setting: OwnState) -> None:
        super().__init__(native)
        self.where, self.at, self.told = setting.where, setting.at, setting.told

    def before(self, arrival: Arrival, found: Findings) -> None:
        found.moves = [(self, "told", Dies(self.told.told)), (self.where, self.at, 1)]


@dataclass(frozen=True)
class OwnState(fastagg.Single):
    where: Any = field(default=None, init=False)
    at: str | int = field(default="count", init=False)
    told: Any = field(default=None, init=False)

    def start(self, material: Any) -> DirectionState:
        return Stated(super().start(material).native, self)


class WithCell:
    count, other = SwapCell[int](), SwapCell[int]()

    def __init__(self) -> None:
        self.count = 0


WHERE: dict[str, tuple[Any, Any]] = {
    "an attribute": (WithCell(), "count"), "an item": (np.zeros(2, np.int64), 1),
    "an attribute that was never set": (WithCell(), "other"), "a dict": ({"count": 0}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", WHERE)
def test_the_state_of_a_direction_changes_with_the_model_or_nothing_does(name: str) -> None:
    where, at = WHERE[name]
    seen: list[Any] = []
    told = Dies(lambda: None)

    def state() -> dict[str, Any]:  # not the settings, which have the direction's state here
        return {**state_of(server._running), "flat": server.flat.clone()}

    own = OwnState()  # no settings, which a checkpoint would hold
    for key, value in (("where", where), ("at", at), ("told", told)):
        object.__setattr__(own, key, value)
    server = fastagg.Server(torch.zeros(D), own, fastagg.SGD(1.0))
    server.dispatch("ann"), server.dispatch("bob")
    before = state()
    if name in ("an attribute", "an item"):
        told.told = lambda: seen.append(state())
        server.receive("ann", ones())
        server.receive("bob", ones())
        assert (where[at] if isinstance(where, np.ndarray) else where.count) == 1
        # whoever is told that the last state is gone finds the next one whole
        assert server.version == 2 and same(seen[-1], state())
        return
    with pytest.raises((fastagg.ConfigError, RuntimeError, TypeError)):
        server.receive("ann", ones())
    assert same(state(), before)
