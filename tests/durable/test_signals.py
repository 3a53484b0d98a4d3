"""Ctrl-C as it comes, at any instruction: an answer is in or it is not, and no lock stays taken."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import inside
from support.lossy import LossyDisk

import fastagg
from fastagg.durable.opening import open_on

# Where a signal falls into a finalizer, Python says so and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SECONDS = 1.5


@pytest.fixture(autouse=True)
def _interrupting() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        if Armed.now:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Armed:
    """Whether an alarm interrupts. Another thread may take it, and Python hears of it after the timer was stopped."""

    now = False


@contextmanager
def interrupted_within(seconds: float) -> Iterator[None]:
    """Interrupt what runs in this context once, ``seconds`` from now unless it has ended by then."""
    try:
        Armed.now = True
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        Armed.now = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def cut_often(call: Callable[[], None], check: Callable[[], None], cuts: int) -> None:
    """Interrupt ``call`` at a random moment, again and again: ``cuts`` times at least, and ten calls get through.

    How long a call takes depends on what else the machine does. So the limit of the moment follows what happens: it
    falls when a call gets through, and rises when one is cut.
    """
    draw, limit, cut, through = random.Random(0), 1e-4, 0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or cut < cuts or through < 10:
        assert time.monotonic() < end + 60, f"{cut} calls cut and {through} got through"
        try:
            with interrupted_within(draw.uniform(1e-6, max(limit, 2e-6))):
                call()
            through, limit = through + 1, limit * 0.9
        except KeyboardInterrupt:
            cut, limit = cut + 1, limit * 1.05
        check()


def make() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(8), lr=1.0, max_waiting=5)


def answering(server: fastagg.Server) -> Callable[[], None]:
    def call() -> None:
        server.dispatch("a")
        server.receive("a", -torch.ones(8))

    return call


def whole(server: fastagg.Server) -> None:
    assert torch.equal(server.flat, torch.full((8,), float(server.version))), "each version is one step of one"
    assert not inside.engine(server).holds_lock, "a lock stayed taken"


@pytest.mark.parametrize("durability", [None, "none", "arrival"])
def test_a_server(durability: Any, tmp_path: Path) -> None:
    server = fastagg.open(tmp_path / "state", make, durability) if durability else make()
    cut_often(answering(server), lambda: whole(server), cuts=20 if durability else 100)
    version = server.version
    assert version >= 10
    if durability:
        server.flush()
        server.close()
        with fastagg.open(tmp_path / "state", make) as again:
            whole(again)
            assert again.version == version, "what was in the model is in the journal"


@contextmanager
def interrupted_when(arrived: Callable[[], bool]) -> Iterator[None]:
    """Interrupt what runs in this context, a moment after ``arrived`` says so."""
    main, over = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not arrived() and not over.wait(0.005):
            pass
        if not over.wait(0.1):
            signal.pthread_kill(main, signal.SIGALRM)

    watcher = threading.Thread(target=watch)
    try:
        Armed.now = True
        watcher.start()
        yield
    finally:
        Armed.now = False
        over.set()
        watcher.join()


class Blocked(LossyDisk):
    """Its syncs wait until somebody lets them."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        super().__init__(lambda what: self._pass() if what == "sync" else None)

    def _pass(self) -> None:
        assert self.free.wait(30)


@pytest.mark.parametrize("form", ["vector", "many", "list", "NumPy", "strided"])
def test_who_is_interrupted_while_waiting_may_use_the_memory_again(form: str) -> None:
    """The log has a copy of its own."""

    def make_large() -> fastagg.Server:
        return fastagg.ASGD([torch.zeros(2000), torch.zeros(3000)], lr=1.0)

    disk = Blocked()
    server = open_on(disk, make_large, "arrival")
    server.dispatch("a")
    server.flush()
    disk.free.clear()
    server.dispatch("b")  # its group waits for the disk, and the update for its group
    while inside.journal(server).pending == 0:
        time.sleep(0.001)
    time.sleep(0.3)
    update = -torch.ones(5000)
    with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: server.version == 1):
        if form == "many":
            server.receive_many([("a", update)])
        else:
            parts = update.split([2000, 3000])
            given = {
                "vector": update,
                "list": list(parts),
                "NumPy": [part.numpy() for part in parts],
                "strided": [torch.stack([part, part], dim=1)[:, 0] for part in parts],  # goes by Python
            }[form]
            server.receive("a", given)
    state = server.flat.clone()
    assert torch.equal(state, torch.ones(5000)) and server.version == 1
    update.fill_(7.0)
    disk.free.set()
    server.close()
    with open_on(disk, make_large, "arrival") as again:
        assert torch.equal(again.flat, state)
