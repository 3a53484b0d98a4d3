"""Whole lives keep every promise, and a life finds each defect that is put back."""

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support import simulated
from support.simulated import Life, Machine, Wrong

import fastagg
from fastagg.durable import doctor, log, opening, recovery, snapshot
from fastagg.durable.keeper import Keeper
from fastagg.durable.log import Log
from fastagg.durable.uploads import Uploads
from fastagg.server import engine

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")

SECONDS = float(os.environ.get("FASTAGG_LIVES_SECONDS", "60"))  # of the slow test; an hour before a release


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Else pytest keeps the records, these the errors, and these the servers that nobody is to hold."""
    caplog.set_level(logging.CRITICAL, "fastagg")


@pytest.fixture(autouse=True)
def fp32_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL", 2 * simulated.SIZE)


@pytest.fixture(autouse=True)
def own_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of a user's own is registered here alone."""
    monkeypatch.setattr(fastagg.registry, "_parts", dict(fastagg.registry._parts))
    fastagg.register(simulated.Own)


@pytest.mark.parametrize("name", simulated.RULES)
def test_a_life_keeps_every_promise(name: str) -> None:
    assert len(set(simulated.live(name, 1, 60))) > 15


@pytest.mark.slow
def test_many_lives_keep_every_promise() -> None:
    until, seed = time.monotonic() + SECONDS, 1000
    done: set[str] = set()
    while time.monotonic() < until:
        for name in simulated.RULES:
            done |= set(simulated.live(name, seed, 80))
        seed += 1
    assert done == set(simulated.ACTIONS)


def asgd() -> fastagg.Server:
    return fastagg.ASGD(torch.zeros(simulated.SIZE), lr=1.0)


def test_a_life_that_wrote_nothing_has_an_incarnation_of_its_own() -> None:
    disk = Machine()
    server = opening.open_on(disk, asgd, "none")
    left = disk.after(len(disk.steps), random.Random(1), 512)
    for client in range(2):
        server.dispatch(client)
        server.receive(client, torch.ones(simulated.SIZE), num_samples=1)
    lost = server.dispatch(0)
    server.close()
    again = opening.open_on(left, asgd, "none")
    for client in range(2):
        again.dispatch(client)
        again.receive(client, torch.ones(simulated.SIZE), num_samples=1)
    assert again.dispatch(0).version == lost.version
    with pytest.raises(fastagg.StaleIncarnation):
        again.receive(0, torch.ones(simulated.SIZE), lost.version, 1, incarnation=lost.incarnation)
    again.close()


def answered(server: fastagg.Server) -> fastagg.Receipt:
    server.dispatch(0)
    return server.receive(0, torch.ones(simulated.SIZE), num_samples=1)


def test_a_sync_that_fails_in_the_head_of_a_new_segment_ends_acknowledgements() -> None:
    class Heads(Machine):
        """The first sync of a segment with another number than 1 fails, and later ones pretend to succeed."""

        failed = 0

        def sync(self, file: int) -> None:
            name = next((name for name, node in self.names_of.items() if node == self.open_files[file]), "")
            if name.startswith("journal-") and not name.endswith("1") and not self.failed:
                self.failed += 1
                raise OSError(5, "Input/output error")
            super().sync(file)

    disk = Heads()
    server = opening.open_on(disk, asgd, "arrival", segment=8192)
    acknowledged = 0
    with pytest.raises(fastagg.NotDurable, match="open the folder again"):
        for _ in range(1000):
            assert answered(server).durable
            acknowledged += 1
    assert disk.failed == 1 and acknowledged > 0
    for call in (lambda: answered(server), server.flush, server.checkpoint):
        with pytest.raises(fastagg.FastaggError):
            call()
    with pytest.raises(fastagg.NotDurable):
        server.close()
    assert opening.open_on(disk, asgd, "arrival", segment=8192).version in (acknowledged, acknowledged + 1)


# -- defects that are put back -----------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """A defect, and the actions that are likely to find it."""

    plant: Callable[[pytest.MonkeyPatch], None]
    often: tuple[str, ...] = ()
    rules: tuple[str, ...] = ("FedBuff", "ACE, int8", "counted")
    says: str | None = None  # what is wrong then
    patience: float = 60.0
    first: int = 0  # the first seed


def _put(holder: Any, name: str, new: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(holder, name, new)


def _around(holder: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Replace a function by one that is made from it."""
    return lambda patch: patch.setattr(holder, name, make(getattr(holder, name)))


def _no_sync(begin: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Files with such names are not synced."""

    def make(sync: Any) -> Any:
        return lambda self, file: None if self.name_of(file).startswith(begin) else sync(self, file)

    return _around(Machine, "sync", make)


def _deaf_sync(self: Machine, file: int) -> None:
    failed = "sync" in self.refuses[0] and self.name_of(file).startswith("journal-")
    self.failed += failed
    if not failed:
        super(Machine, self).sync(file)


def _reads_all(read_log: Any) -> Any:
    """A log is read, and nobody asks whose segments they are."""
    return lambda disk, found, after: read_log(disk, found, after._replace(manifest={**after.manifest, "folder": 0}))


def _everybody_reads_all(patch: pytest.MonkeyPatch) -> None:
    for module in (recovery, doctor):
        _around(module, "read_log", _reads_all)(patch)


class Seen:
    """A journal, some of whose answers are others."""

    def __init__(self, journal: Any, **answers: Callable[[Any], Any]) -> None:
        self.journal, self.answers = journal, answers

    def __getattr__(self, name: str) -> Any:
        return self.answers[name](self.journal) if name in self.answers else getattr(self.journal, name)


def _keeper_sees(**answers: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    def make(start: Any) -> Any:
        return lambda self, journal, *more: start(self, Seen(journal, **answers), *more)

    return _around(Keeper, "start", make)


def _start_anew(start: Any) -> Any:
    return lambda *given: {**start(*given), "place": 0, "number_here": 0}


def _uncounted(start: Any) -> Any:
    return lambda self, journal, replayed, room: start(self, journal, 0, room)


def _under_a_lock(checkpoint: Any) -> Any:
    lock = threading.Lock()

    def locked(self: Keeper) -> int:
        with lock:
            return int(checkpoint(self))

    return locked


HANGS = "no return|has hung"
MUTANTS = {
    "a failed sync is taken for a good one": Mutant(
        _put(Machine, "sync", _deaf_sync), ("failed_sync",), says="sync failed|failed sync"),
    "a checkpoint is not synced before it has its name": Mutant(_no_sync("checkpoint-"), ("checkpoint", "power")),
    "the log is not synced": Mutant(_no_sync("journal-"), ("power",), says="lost|never was|missing|damaged"),
    "uploads are not synced": Mutant(_no_sync("upload-"), ("chunks", "power")),
    "names are not synced": Mutant(_put(Machine, "sync_folder", lambda self, name=".": None), ("power",)),
    "what a killed process wrote is taken for synced": Mutant(
        _around(opening, "_start", lambda start: lambda *given: {**start(*given), "needed": set()}),
        ("kill_and_power",), says="lost|never was"),
    "flush() does not wait": Mutant(_put(Log, "flush", lambda self: None), ("flush", "dispatch", "power")),
    "receipts do not wait": Mutant(
        _around(opening, "begin_journal", lambda begin: lambda disk, start, mode, most: begin(
            disk, start, "none", most)), says="not on the disk|lost"),
    "a record is in its checkpoint and in the log behind it": Mutant(
        _keeper_sees(
            last=lambda journal: max(0, journal.last - 1),
            digest=lambda journal: lambda sequence: journal.digest(sequence + 1) or bytes(32),
        ),
        ("checkpoint", "kill"), says="never was|doctor|not those"),
    "a checkpoint does not wait for its log": Mutant(
        _keeper_sees(wait=lambda journal: lambda sequence: None), ("dispatch", "checkpoint", "power")),
    "a life begins a segment, and no mark names it": Mutant(
        _around(opening, "_start", _start_anew), ("close", "kill"), says="damaged"),
    "the tail of a killed process is not written again": Mutant(
        _around(opening, "_make_durable", lambda write: lambda disk, names, unsure: write(disk, names, {})),
        ("failed_sync", "flush", "power"), says="lost|never was|damaged"),
    "a life does not count the bytes that it replayed": Mutant(
        _around(Keeper, "start", _uncounted), ("close", "kill"), says="bytes"),
    "all incarnations are the same": Mutant(
        _put(engine, "new_incarnation", lambda: 7), ("power", "lost_task", "dispatch", "foreign")),
    "checkpoint() of a closed server waits for a thread that has ended": Mutant(
        _put(Keeper, "_refuse_requests", lambda self: None), ("close",), says=HANGS, patience=4.0),
    "checkpoint() in the middle of a step waits for the step": Mutant(
        _put(Keeper, "refuse_with_lock", lambda self, what: None), ("nested",), ("own",), HANGS + "|not refused", 4.0),
    "checkpoint() in a handler waits for the checkpoint() that it interrupts": Mutant(
        _around(Keeper, "checkpoint", _under_a_lock), ("handled_checkpoint",), says=HANGS, patience=4.0),
    "a server that nobody holds keeps its folder": Mutant(
        _put(opening, "_abandoned", lambda log: None), ("abandon",), says="open already"),
    "no checkpoints any more after a full disk": Mutant(
        _keeper_sees(ended=lambda journal: bool(journal.failure)), ("full_disk", "checkpoint"), says="closed|bytes"),
    "an open upload is removed": Mutant(_put(Uploads, "needed", lambda *_: set()), ("slow_chunks",)),
    "uploads are never removed": Mutant(
        _put(Uploads, "needed", lambda *_: set(range(10**6))), ("chunks", "checkpoints"), says="no record names"),
    "a restart forgets which uploads are recorded": Mutant(
        _around(opening, "Uploads", lambda make: lambda known, begin: make({}, begin)), ("chunks", "close")),
    "segments of other folders are taken": Mutant(
        _everybody_reads_all, ("foreign",)),
    "the doctor takes segments of other folders": Mutant(
        _around(doctor, "read_log", _reads_all), ("foreign",), says="doctor"),
    "a moment is not copied for a checkpoint": Mutant(
        _put(snapshot.checkpoint, "cloned", lambda state: state), ("checkpoint_meanwhile", "kill"),
        ("FADAS, corrected", "FedAMS", "FedBuff")),
    "many attempts to send one answer hold many files": Mutant(
        _put(Uploads, "begin", lambda self, *_: self.next()), ("chunks",), says="open files|files of uploads"),
}  # fmt: skip


@pytest.mark.slow  # it is of the lives, and not of the package
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a defect may be in a finalizer
@pytest.mark.parametrize("name", MUTANTS)
def test_a_defect_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    begun: list[Life] = []
    try:
        with pytest.raises(Wrong, match=mutant.says):
            for seed in range(mutant.first, mutant.first + 60):
                life = Life(mutant.rules[seed % len(mutant.rules)], seed, mutant.patience)
                begun.append(life)
                life.live(60, mutant.often)
    finally:
        monkeypatch.undo()
        for life in begun:
            life.end()
