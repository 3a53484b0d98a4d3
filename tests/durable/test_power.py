"""After a power loss every recovery gives an earlier state with all acknowledged updates. Also tests failing disks."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import inside
from support.lossy import LossyDisk
from support.presets import PRESETS, calls, model, update

import fastagg
from fastagg import NotDurable
from fastagg.durable.opening import open_on

SIZE = 40
NAMES = ("FADAS, corrected", "ACE, int8", "ACE, bf16", "ACED, int4", "CA2FL, int4", "FedAsync, polynomial")


def fingerprint(server: fastagg.Server) -> str:
    """Of all that a client can see of a server: its model, moments, sums, rows and open tasks."""
    state = server.state_dict(copy=False)
    digest = hashlib.sha256()

    def eat(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(str(tuple(value.shape)).encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                digest.update(str(key).encode())
                eat(value[key])
        elif isinstance(value, (list, tuple)):
            for one in value:
                eat(one)
        else:
            digest.update(repr(value).encode())

    tasks = state["tasks"]
    lines = zip(*(tasks[key].tolist() for key in ("task_client", "task_version")), strict=True)
    eat([state["flat"], state["moments"], state["direction"], sorted(lines), state["version"]])
    return digest.hexdigest()


def record(name: str, seed: int) -> tuple[LossyDisk, list[str], Callable[[], fastagg.Server]]:
    """A run of two openings on a disk that remembers it. Moments: ("acknowledged", how many states there were)."""
    disk, rng = LossyDisk(), random.Random(seed)

    def make() -> fastagg.Server:
        return PRESETS[name](model(SIZE))

    states: list[str] = []
    for _ in range(2):
        server = open_on(disk, make, "arrival", segment=16384, keep=1 + seed % 2)
        states.append(fingerprint(server))
        for k, call in enumerate(calls(name, 8)):
            if call.number is None:
                server.dispatch(call.client)
                states.append(fingerprint(server))
            else:
                # Both the state and the promise: what comes after is at least this.
                inside.journal(server).mode = "none"
                server.receive(call.client, update(call.number, SIZE), num_samples=1)
                inside.journal(server).mode = "arrival"
                states.append(fingerprint(server))
                if rng.random() < 0.7:
                    server.flush()
                    disk.note("acknowledged", len(states) - 1)
            if k == 9:
                server.checkpoint()
        server.close()
        disk.note("acknowledged", len(states) - 1)
    return disk, states, make


def crashes(name: str, seed: int, count: int) -> int:
    """Lose power ``count`` times; how many different states were found."""
    disk, states, make = record(name, seed)
    rng, found = random.Random(seed), set()
    begun = 1 + next(k for k, step in enumerate(disk.steps) if step[0] == "acknowledged")
    for _ in range(count):
        steps = rng.randint(begun, len(disk.steps))
        promised = max(step[1] for step in disk.steps[:steps] if step[0] == "acknowledged")
        left = disk.after(steps, rng, rng.choice((512, 4096)))
        server = open_on(left, make, "arrival", segment=16384)
        state = fingerprint(server)
        assert state in states[promised:], (name, seed, steps, promised, state in states)
        found.add(state)
        if rng.random() < 0.2:  # it goes on, and loses power again
            server.dispatch(0)
            server.receive(0, update(1, SIZE), num_samples=1)
            state = fingerprint(server)
            again = left.after(len(left.steps), rng, 512) if rng.random() < 0.5 else left
            if again is left:
                server.close()
            assert fingerprint(open_on(again, make, "arrival", segment=16384)) == state
    return len(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_recovery_is_a_state_that_was_with_everything_acknowledged_in_it(name: str) -> None:
    assert crashes(name, 1, 60) > 5


def test_the_first_opening_is_whole_or_not_there() -> None:
    disk, rng = LossyDisk(), random.Random(0)

    def make() -> fastagg.Server:
        return fastagg.ASGD(model(SIZE), lr=0.1)

    open_on(disk, make, "arrival", segment=16384).close()
    for steps in range(len(disk.steps) + 1):
        for _ in range(3):
            server = open_on(disk.after(steps, rng, 512), make, "arrival", segment=16384)
            assert server.version == 0 and torch.equal(server.flat, model(SIZE))


class Refusal:
    """Raises at calls of this name while it is on."""

    def __init__(self, what: tuple[str, ...], number: int) -> None:
        self.what, self.number, self.on = what, number, False

    def __call__(self, what: str) -> None:
        if self.on and what in self.what:
            raise OSError(self.number, os.strerror(self.number))


def test_a_full_disk_stops_acknowledgements_and_one_that_is_freed_goes_on() -> None:
    full = Refusal(("write", "allocate", "create"), errno.ENOSPC)
    disk = LossyDisk(full)
    server = open_on(disk, lambda: fastagg.ASGD(model(SIZE), lr=0.1), "arrival", segment=16384)
    server.dispatch(1)
    server.dispatch(2)
    server.flush()
    full.on = True
    with pytest.raises(NotDurable, match="No space left"):
        server.receive(1, update(1, SIZE))
    assert server.version == 1  # it is in the model, and its record waits
    with pytest.raises(NotDurable, match="No space left"):
        server.receive(2, update(2, SIZE))
    assert server.version == 1  # this one was refused before anything changed
    with pytest.raises(fastagg.FastaggError):
        server.checkpoint()
    full.on = False
    for _ in range(100):
        try:
            receipt = server.receive(2, update(2, SIZE))
            break
        except NotDurable:
            time.sleep(0.05)
    assert receipt.durable and server.version == 2
    state = fingerprint(server)
    left = disk.after(len(disk.steps), random.Random(0), 512)
    assert fingerprint(open_on(left, lambda: fastagg.ASGD(model(SIZE), lr=0.1), "arrival", segment=16384)) == state


def test_a_sync_that_fails_ends_acknowledgements_until_the_folder_is_opened_again() -> None:
    broken = Refusal(("sync",), errno.EIO)
    disk = LossyDisk(broken)
    server = open_on(disk, lambda: fastagg.ASGD(model(SIZE), lr=0.1), "arrival", segment=16384)
    server.dispatch(1)
    assert server.receive(1, update(1, SIZE)).durable
    server.dispatch(1)
    broken.on = True
    with pytest.raises(NotDurable, match=r"Input/output error.*open the folder again"):
        server.receive(1, update(1, SIZE))
    broken.on = False
    for call in (lambda: server.receive(1, update(1, SIZE)), lambda: server.dispatch(1), server.flush):
        with pytest.raises(NotDurable, match="open the folder again"):
            call()
    with pytest.raises(NotDurable):
        server.close()
    for k in range(20):
        left = disk.after(len(disk.steps), random.Random(k), 512)
        assert open_on(left, lambda: fastagg.ASGD(model(SIZE), lr=0.1), "arrival", segment=16384).version in (
            1,
            2,
        )
