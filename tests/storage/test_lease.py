"""Memory that a device has not read yet. The device is a fake."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch

from fastagg.storage import lease
from fastagg.storage.lease import Lease


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


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Event]]:
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    current = threading.local()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(current, "stream", "the launch's"))
    monkeypatch.setattr(lease, "_unread", type(lease._unread)())
    yield Event.made


class Owner:
    """Somebody's memory."""


def test_memory_of_another_library_lives_until_it_has_been_read(events: list[Event]) -> None:
    gone: list[str] = []
    owner = Owner()
    weakref.finalize(owner, gone.append, "freed")
    held = Lease(owner, torch.device("cuda", 0))
    del owner
    del held
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
    assert len(lease._unread) == len(events) == 800
    for event in events:
        event.come = True
    lease._sweep()
    assert not lease._unread
