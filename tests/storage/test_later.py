"""Numbers that a device has not sent yet, and memory that it has not read yet. The device is a fake."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch

from fastagg.storage import later
from fastagg.storage.later import Later, Lease


class Event:
    """An event that happens when the test says so."""

    made: ClassVar[list[Event]] = []

    def __init__(self) -> None:
        self.stream: object = None
        self.come = False
        Event.made.append(self)

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.come

    def synchronize(self) -> None:
        self.come = True


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    current = threading.local()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(current, "stream", "the launch's"))
    monkeypatch.setattr(later, "_unread", type(later._unread)())
    yield Event.made


class Owner:
    """Somebody's memory."""


def test_memory_of_another_library_lives_until_it_has_been_read(events: list[Event]) -> None:
    gone: list[str] = []
    owner = Owner()
    weakref.finalize(owner, gone.append, "freed")
    lease = Lease(owner, torch.device("cuda", 0))
    del owner
    del lease
    assert len(events) == 1 and events[0].stream == "the launch's"
    assert not gone  # the launch may still read it
    Lease(Owner(), torch.device("cuda", 0))
    assert not gone
    events[0].come = True
    Lease(Owner(), torch.device("cuda", 0))  # whoever comes next lets go of what has been read
    assert gone == ["freed"]


def test_leases_that_end_in_many_threads(events: list[Event]) -> None:
    def use() -> None:
        for _ in range(200):
            Lease(Owner(), torch.device("cuda", 0))

    with ThreadPoolExecutor(4) as pool:
        for end in [pool.submit(use) for _ in range(4)]:
            end.result()
    assert len(later._unread) == len(events) == 800
    for event in events:
        event.come = True
    later._sweep()
    assert not later._unread


def test_numbers_wait_for_the_launch_that_makes_them(events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    """And are copied on its stream, not on the reader's."""
    found = torch.tensor([1.0, 2.0], dtype=torch.float64)
    device = types.SimpleNamespace(is_cuda=True, shape=found.shape, dtype=found.dtype, device=torch.device("cuda", 0))
    copies: list[object] = []
    make = torch.empty

    class Host(torch.Tensor):
        def copy_(self, source: object, non_blocking: bool = False) -> torch.Tensor:
            assert non_blocking and source is device
            copies.append(source)
            return self

    def empty(*shape: object, pin_memory: bool = False, **how: object) -> torch.Tensor:
        assert pin_memory  # or the copy would wait
        return make(*shape, **how).fill_(7.0).as_subclass(Host)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(torch, "empty", empty)
    answer = Later(device)  # type: ignore[arg-type]
    assert copies and events[0].stream == "the launch's" and not events[0].come
    assert answer.tolist() == [7.0, 7.0]
    assert events[0].come


def test_numbers_of_the_host() -> None:
    assert Later(torch.tensor([1.0, 2.5])).tolist() == [1.0, 2.5]
