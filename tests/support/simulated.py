"""Whole lives of a server with a folder: a seed chooses what clients, operators and the machine do, one by one.

A *twin* without a folder gets the same calls. After each action the server must be the twin to the bit. After each end
(close, kill, power loss) the recovered server must be what the twin was at some moment, with all that was
acknowledged. The actions depend on the seed alone. How the log's thread groups records does not: what is checked holds
for all groups.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from test_open import without_lives

import fastagg
from fastagg import FastaggError, NotDurable
from fastagg.durable import doctor, folder, opening, trees
from support import inside
from support.bits import digest
from support.lossy import LossyDisk
from support.operations import CHANGES
from support.presets import PRESETS, model, update

SIZE, CLIENTS, KEEP = 40, 3, 2
EVERY, SEGMENT = 40_000, 32_768  # bytes of log for a checkpoint, and of a segment
LEASE = 1e6  # seconds of the fake clock
Op = Callable[[fastagg.Server, int | None], Any]  # the second one: the task's incarnation, for the server alone
Make = Callable[[], fastagg.Server]

within: list[Callable[[], None]] = []  # what a rule of the user's own does in the middle of a step


class Wrong(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Own(fastagg.Staleness):
    """A rule of the user's own, which may do anything while it is asked."""

    weighs = True

    def weight(self, delay: int) -> float:
        for act in within:
            act()
        return 1.0 / (1 + delay)


def _counted(params: torch.Tensor, **more: Any) -> fastagg.Server:
    return fastagg.ASGD(torch.zeros_like(params), lr=1.0, **more)


RULES: dict[str, Callable[..., fastagg.Server]] = {
    **{name: PRESETS[name] for name in (
        "FedBuff", "FedBuff, one", "FADAS, corrected", "FedAsync, polynomial", "ACE, int8", "ACE, bf16", "ACED, int4",
        "CA2FL, int4", "ACE, partial, int8, by samples", "FedAMS", "FedAvg, deterministic",
    )},
    "counted": _counted,  # each element of the model is the number of updates that had it
    "own": lambda params, **more: fastagg.Server(params, fastagg.Buffer(2), fastagg.SGD(0.5), Own(), **more),
}  # fmt: skip


class Task(NamedTuple):
    client: int
    version: int
    incarnation: int
    after: int  # so many operations


class Hung(Wrong):
    """A call did not return."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise :class:`Hung` in this thread, the main one, if it is in here for longer."""

    def late(*_: Any) -> None:
        raise Hung(f"no return within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


class Machine(LossyDisk):
    """The fake disk, and what else happens to a machine.

    Attributes:
        refuses: calls that fail now, and the error's number.
        writing: called before a file is written, with its name.
        syncing: called before a file or the folder is synced.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.refuses: tuple[tuple[str, ...], int] = ((), 0)
        self.fail = self._refuse
        self.writing: Callable[[str], None] | None = None
        self.syncing: Callable[[], None] = lambda: None
        self.failed = 0  # syncs of the log

    def _refuse(self, what: str) -> None:
        if what in self.refuses[0]:
            raise OSError(self.refuses[1], os.strerror(self.refuses[1]))

    def name_of(self, file: int) -> str:
        return next((name for name, node in list(self.names_of.items()) if node == self.open_files.get(file)), "")

    def write(self, file: int, buffers: Any, offset: int) -> int:
        if self.writing is not None:
            self.writing(self.name_of(file))
        return super().write(file, buffers, offset)

    def sync(self, file: int) -> None:
        if "sync" in self.refuses[0] and self.name_of(file).startswith("journal-"):
            self.failed += 1
        self.syncing()
        super().sync(file)

    def sync_folder(self, name: str = ".") -> None:
        self.syncing()
        super().sync_folder(name)

    @classmethod
    def of(cls, other: LossyDisk) -> Machine:
        """The same disk in another machine."""
        made = cls(path=other.path)
        made.names_of, made.folders, made.data, made.base = other.names_of, other.folders, other.data, other.base
        made.steps, made._next = other.steps, other._next
        return made

    def nbytes(self) -> int:
        return sum(len(self.data[node]) for node in list(self.names_of.values()))

    def files(self, begin: str) -> list[str]:
        return sorted(name for name in list(self.names_of) if name.startswith(begin))


def fingerprint(server: fastagg.Server) -> str:
    """Of all that a client can see of a server, to the bit."""
    return digest(without_lives(server))


def end_of(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error. Any other error than the package's is wrong."""
    try:
        return call()
    except FastaggError as error:
        return error
    except AssertionError:
        raise
    except Exception as error:
        raise Wrong(f"an error without a name of ours: {error!r}") from error


class Life:
    """One folder, from its first opening to its last.

    Args:
        name: of the rule.
        patience: seconds after which an action is taken for hung.
    """

    def __init__(self, name: str, seed: int, patience: float = 60.0) -> None:
        self.name, self.patience, self.seed = name, patience, seed
        self.rng = random.Random(f"{name} {seed}")
        self.durability: Any = self.rng.choice(("arrival", "arrival", "arrival", "step", "none"))
        self.make: Make = lambda: RULES[name](model(SIZE), lease=LEASE)
        self.disk = Machine()
        self.opened_by: list[fastagg.Server] = []  # all servers, so that their threads are ended at the end
        self.kept: list[Any] = []  # uploads that their clients abandoned, and somebody still holds
        self.tasks: list[Task] = []
        self.lost: list[Task] = []
        self.history: list[Op] = []
        self.counts: list[dict[int, int]] = [{}]  # for "counted", after each operation
        self.number = 0
        self.did: list[str] = []
        self.promised = 0
        self.twin = self.make()
        self.states = [fingerprint(self.twin)]
        self.server = self.open(self.disk)
        self.note()

    # -- what everybody does -------------------------------------------------------------------------------------------

    def live(self, actions: int, often: tuple[str, ...] = ()) -> None:
        """Do so many actions, some of them often, and end."""
        names, weights = zip(*((name, weight + 25 * (name in often)) for name, weight in ACTIONS.items()), strict=True)
        try:
            for _ in range(actions):
                self.act(self.rng.choices(names, weights)[0])
            self.act("close")
        finally:
            within.clear()

    def act(self, name: str) -> None:
        """Do one action, and check all promises."""
        self.did.append(name)
        try:
            with limit(self.patience):
                getattr(self, name)()
                self.check()
        except Exception as wrong:
            said = wrong if isinstance(wrong, Wrong) else repr(wrong)
            raise Wrong(f"{self.name!r}, seed {self.seed}, {self.durability}: {said} in {self.did[-12:]}") from wrong

    def end(self) -> None:
        """End all threads, whatever has happened."""
        within.clear()
        self.kept.clear()
        for server in self.opened_by:
            with contextlib.suppress(FastaggError):
                inside.log(server).close(1.0)

    def do(self, op: Op, *, waits: bool, task: Task | None = None) -> Any:
        """Do the same with the server and the twin: the outcome is the same, and so is the server.

        Args:
            waits: whether its success says that it is on the disk.
        """
        end = self._on_server(lambda: op(self.server, None if task is None else task.incarnation))
        if isinstance(end, NotDurable) and fingerprint(self.server) == self.states[-1]:
            return end  # refused before it changed anything
        wanted = self._on_twin(op)
        if not isinstance(end, NotDurable) and not _alike(end, wanted):
            raise Wrong(f"the server says {end!r}, and the twin {wanted!r}")
        self._acknowledge(end, waits)
        return end

    def do_many(self, call: Callable[[fastagg.Server], Any], ops: list[Op], sent: list[torch.Tensor]) -> None:
        """One call of the server that is the same as several ones of the twin. Power may be lost between them, so each
        of the updates ``sent`` is counted in the states from its own on."""
        end = self._on_server(lambda: call(self.server))
        if not isinstance(end, FastaggError):
            wanted = []
            for op, one in zip(ops, sent, strict=True):
                wanted.append(self._on_twin(op))
                self._count(one)
            if not _alike(end, wanted):
                raise Wrong(f"the server says {end!r}, and the twin {wanted!r}")
            self._acknowledge(end, True)
            return
        for op, one in zip(ops, sent, strict=True):  # as many of them as have happened
            if fingerprint(self.server) != self.states[-1]:
                self._on_twin(op)
                self._count(one)

    def _on_server(self, call: Callable[[], Any]) -> Any:
        begun = self.server.version
        end = end_of(call)
        within.clear()
        if self.server.version < begun:
            raise Wrong(f"version {begun} is followed by {self.server.version}")
        return end

    def _on_twin(self, op: Op) -> Any:
        end = end_of(lambda: op(self.twin, None))
        self.history.append(op)
        self.states.append(fingerprint(self.twin))
        self.counts.append(dict(self.counts[-1]))
        return end

    def _acknowledge(self, end: Any, waits: bool) -> None:
        if not waits or isinstance(end, FastaggError):
            return
        receipts = [one for one in (end if isinstance(end, list) else [end]) if isinstance(one, fastagg.Receipt)]
        if self.durability == "arrival" and not all(one.durable for one in receipts):
            raise Wrong("a receipt of an update that is not on the disk")
        if receipts and all(one.durable for one in receipts):
            self.note()

    def note(self) -> None:
        """All so far is acknowledged."""
        self.promised = len(self.states) - 1
        self.disk.note("acknowledged", self.promised)

    def check(self) -> None:
        """Check what holds at every moment."""
        if fingerprint(self.server) != self.states[-1]:
            raise Wrong("the server is not what the same calls make of one without a folder")
        if self.name == "counted" and self.server.flat.tolist() != [
            -float(self.counts[-1].get(k, 0)) for k in range(SIZE)
        ]:
            raise Wrong("an update counts twice, or not at all")
        if not bool(self.server.flat.isfinite().all()):
            raise Wrong("the model is not finite")
        self._turn_of_the_keeper()
        uploads = len({(one.client, one.version) for one in self.tasks}) + len(self.disk.files("upload-"))
        most = 4 + uploads
        if len(self.disk.open_files) > most:
            raise Wrong(f"{len(self.disk.open_files)} open files, expected at most {most}")
        waiting = len(self.disk.files("upload-")) - len(self._log.keeper.uploads.recorded())
        if waiting > len(self.tasks):
            raise Wrong(f"{waiting} files of uploads for {len(self.tasks)} tasks")
        newest = sum(trees.used(self.disk, folder.checkpoint_name(self._log.keeper.kept[-1])))
        most = (KEEP + 1) * (newest + 3 * SEGMENT + 8 * SIZE + EVERY) + 4 * (SEGMENT + SIZE)  # docs/operations.md
        if self.disk.nbytes() > most:
            raise Wrong(f"{self.disk.nbytes()} bytes of disk, expected at most {most}")

    @property
    def _log(self) -> Any:
        return inside.log(self.server)

    def _turn_of_the_keeper(self) -> None:
        """Wait for a checkpoint that is due. So the disk's bytes do not depend on threads."""
        keeper, journal = self._log.keeper, self._log.journal
        until = time.monotonic() + 5.0
        while journal.written >= keeper._due and not journal.failure and time.monotonic() < until:
            time.sleep(0.0005)

    # -- beginnings and ends -------------------------------------------------------------------------------------------

    def open(self, disk: Machine) -> fastagg.Server:
        server = opening.open_on(
            disk, self.make, self.durability, segment=SEGMENT, keep=KEEP, checkpoint_every=EVERY
        )  # fmt: skip
        self.opened_by.append(server)
        return server

    def found(self, disk: Machine, promised: int) -> tuple[fastagg.Server, int]:
        """Open a folder. Return the server, and how many operations it has."""
        fresh = not any(name.startswith("checkpoint-") and "." not in name for name in disk.names())
        told = None if fresh else doctor.examine_on(Machine.of(disk.copy()), replay=True)
        server = end_of(lambda: self.open(disk))
        if isinstance(server, FastaggError):
            raise Wrong(f"the folder cannot be opened: {server}; the doctor says {told and told['problems']}")
        if told is not None and (told["problems"] or told["recovery"]["would"] != "go on"):
            raise Wrong(f"it opens, and the doctor says {told['problems']}")
        if told is not None and told["recovery"]["bytes"] > 2 * (EVERY + 2 * SEGMENT):
            raise Wrong(f"{told['recovery']['bytes']} bytes to replay")
        state = fingerprint(server)
        if state not in self.states[promised:]:
            was = state in self.states
            raise Wrong("an acknowledged update is lost" if was else "what is recovered never was")
        return server, promised + self.states[promised:].index(state)

    def begin(self, disk: Machine, promised: int) -> None:
        """Go on in a folder, with what is in it."""
        self.kept.clear()
        gc.collect(0)
        self.disk = disk
        self.server, count = self.found(disk, promised)
        version = self.server.version
        self.lost += [one for one in self.tasks if one.version > version]
        self.lost = self.lost[-6:]
        self.tasks = [one for one in self.tasks if one.after <= count]
        del self.history[count:], self.states[count + 1 :], self.counts[count + 1 :]
        self.promised = count
        self.twin = self.make()
        for op in self.history:
            end_of(lambda op=op: op(self.twin, None))  # type: ignore[misc]
        if fingerprint(self.twin) != self.states[-1]:
            raise Wrong("the twin is not what it was")

    def close(self) -> None:
        self._turn_of_the_keeper()
        server, disk = self.server, self.disk
        end = end_of(server.close)
        if isinstance(end, FastaggError):
            raise Wrong(f"close(): {end}")
        self.note()
        for call in (server.checkpoint, server.flush, lambda: server.dispatch(0)):
            if not isinstance(end_of(call), FastaggError) and call != server.flush:
                raise Wrong("a closed server works")
        self.begin(disk, self.promised)

    def abandon(self) -> None:
        """Nobody closes the server, and nobody holds it."""
        disk = self.disk
        self.opened_by.remove(self.server)
        self.kept.clear()
        del self.server
        gc.collect()
        self.begin(disk, self.promised)

    def kill(self) -> None:
        """The process dies, now or between a write and its sync."""
        promised, left = self.promised, self.rng.choice((-1, 0, 0, 1, 2))
        died: list[Machine] = []

        def syncing() -> None:
            nonlocal left
            if left == 0:
                died.append(Machine.of(self.disk.copy()))
            left -= 1

        self.disk.syncing = syncing
        self._answer(self._dispatched())
        self.disk.syncing = lambda: None
        if not died:
            promised = self.promised
            died.append(Machine.of(self.disk.copy()))
        with contextlib.suppress(FastaggError):
            self.server.close()
        self.begin(died[0], promised)

    def power(self) -> None:
        """The power is lost, now or some time ago."""
        steps = self.disk.steps
        back = self.rng.choice((0, 0, 3, 12, 60, len(steps)))
        moment = max(0, len(steps) - self.rng.randint(0, back))
        told = [step[1] for step in steps[:moment] if step[0] == "acknowledged"]
        left = Machine.of(self.disk.after(moment, self.rng, self.rng.choice((512, 4096))))
        with contextlib.suppress(FastaggError):
            self.server.close()
        promised = max(told, default=0)
        if len(steps) and not told and self.disk.base[0]:
            promised = self.base_promised
        self.begin(left, promised)
        self.base_promised = self.promised
        self.disk.note("acknowledged", self.promised)

    base_promised = 0

    def kill_and_power(self) -> None:
        """The process dies, the next one acknowledges what it finds, and then the power is lost."""
        self.kill()
        self.note()
        self.power()

    def failed_sync(self) -> None:
        """A sync fails; the disk may lie later. Nothing is acknowledged until the folder is opened again."""
        task = self._dispatched()
        self.disk.refuses = (("sync",), errno.EIO)
        ends = [self._answer(task)]
        if self.rng.random() < 0.5:
            ends.append(end_of(self.server.flush))
        self.disk.refuses = ((), 0)
        if self.durability == "arrival" and not any(isinstance(end, FastaggError) for end in ends):
            raise Wrong("an answer was acknowledged while the sync failed")
        if self.durability != "arrival":
            time.sleep(0.12)  # the log's thread writes in its own time
        end_of(self.server.flush)
        if self.disk.failed:
            for call in (self.server.flush, lambda: self.server.dispatch(0), lambda: self._answer(task)):
                if not isinstance(end_of(call), FastaggError):
                    raise Wrong("acknowledged after a failed sync")
            if not isinstance(end_of(self.server.close), NotDurable):
                raise Wrong("close() of a failed disk says nothing")
            if self.rng.random() < 0.5:
                self.disk.failed = 0
                self.begin(self.disk, self.promised)  # the same disk: it is unlocked
                return
        self.power()

    def full_disk(self) -> None:
        """The disk is full, refuses by name, and goes on when it is not."""
        task, other = self._dispatched(), self._dispatched()
        end_of(self.server.flush)
        self.disk.refuses = (("write", "allocate", "create"), errno.ENOSPC)
        for one in (task, other):
            end = self._answer(one)
            if self.durability == "arrival" and not isinstance(end, FastaggError):
                raise Wrong("acknowledged on a full disk")
        if not isinstance(end_of(self.server.checkpoint), FastaggError) and len(self.states) - 1 > self.promised:
            raise Wrong("a checkpoint on a full disk")
        keeper, journal, is_due = self._log.keeper, self._log.journal, self.rng.random() < 0.5
        if is_due:
            keeper._due = due = journal.written  # one is due just now
            journal.nudge()
            until = time.monotonic() + 1.0
            while keeper._due == due and time.monotonic() < until:
                time.sleep(0.0005)
        self.disk.refuses = ((), 0)
        for _ in range(3000):
            self.do(lambda server, _: server.dispatch(0), waits=False)  # wakes the log, which tries again
            if not isinstance(end_of(self.server.flush), FastaggError):
                self.note()
                if is_due:
                    self.checkpoint()
                return
            time.sleep(0.01)
        raise Wrong("the disk has room again, and the log does not go on")

    def elsewhere(self) -> None:
        """A copy of the folder is opened while the server goes on."""
        self._aside(Machine.of(self.disk.copy()))

    def _aside(self, disk: Machine) -> None:
        server, _ = self.found(disk, self.promised)
        server.close()

    def _newest(self) -> int:
        return int(self._log.keeper.kept[-1])

    # -- clients -------------------------------------------------------------------------------------------------------

    def _dispatched(self, client: int | None = None) -> Task:
        client = self.rng.randrange(CLIENTS) if client is None else client
        found = self.do(lambda server, _: server.dispatch(client), waits=False)
        if isinstance(found, FastaggError):
            raise Wrong(f"dispatch(): {found}")
        task = Task(client, found.version, found.incarnation, len(self.history))
        self.tasks = [*self.tasks[-9:], task]
        return task

    def _sent(self) -> torch.Tensor:
        self.number += 1
        if self.name != "counted":
            return update(self.number, SIZE)
        sent = torch.zeros(SIZE)
        sent[self.number % SIZE] = 1.0
        return sent

    def _answer(self, task: Task, changes: bool = False) -> Any:
        sent, samples = self._sent(), 1 + self.number % 4
        changed, counted = torch.full_like(sent, 2.0), [sent]

        def op(server: fastagg.Server, incarnation: int | None) -> Any:
            given = counted[0].clone()
            if changes and incarnation is not None:
                self.disk.writing = lambda name: given.fill_(3.0) if name.startswith("journal-") else None
                within.append(lambda: given.fill_(2.0))  # before the update is read, or after it
            receipt = server.receive(task.client, given, task.version, samples, incarnation=incarnation)
            if receipt.update_norm == float(changed.double().norm()):
                counted[0] = changed
            return receipt

        end = self.do(op, waits=True, task=task)
        if changes:
            self.disk.writing = None
        self._count(sent)
        return end

    def _count(self, sent: torch.Tensor) -> None:
        """Remember whether it has counted: each update of this rule makes a version."""
        if self.name == "counted" and self.twin.version == sum(self.counts[-1].values()) + 1:
            place = int(sent.argmax())
            self.counts[-1][place] = self.counts[-1].get(place, 0) + 1

    def _any(self) -> Task:
        return self.rng.choice(self.tasks) if self.tasks else self._dispatched()

    def dispatch(self) -> None:
        self._dispatched()

    def receive(self) -> None:
        self._answer(self._any())

    def round_trip(self) -> None:
        self._answer(self._dispatched())

    def answered_twice(self) -> None:
        task = self._dispatched()
        self._answer(task)
        self._answer(task)

    def lost_task(self) -> None:
        """An answer to a version that was lost, and whose number may be another one's now."""
        for task in self.lost:
            sent = self._sent()
            end = end_of(
                lambda task=task, sent=sent: self.server.receive(  # type: ignore[misc]
                    task.client, sent, task.version, 1, incarnation=task.incarnation
                )
            )
            if not isinstance(end, FastaggError):
                raise Wrong("an answer to a version that was lost counts")

    def several(self) -> None:
        tasks = [self._dispatched(client) for client in range(CLIENTS)]
        sent = [self._sent() for _ in tasks]
        spoilt = self.rng.choice((None, None, 0, 1))
        if spoilt is not None:
            sent[spoilt] = torch.full((SIZE,), float("nan"))
        answers = [(one.client, part, one.version, 2) for one, part in zip(tasks, sent, strict=True)]
        ops: list[Op] = [lambda server, _, one=one: server.receive(*one) for one in answers]  # type: ignore[misc]
        self.do_many(lambda server: server.receive_many(answers), ops, sent)

    def operation(self) -> None:
        """One of the table, but for those of several answers."""
        several = "receive_many", "models", "load_state_dict"
        name, client = self.rng.choice([name for name in CHANGES if name not in several]), self.rng.randrange(CLIENTS)
        self.number += 1
        number = self.number
        if self.name != "counted":
            answers = name.startswith("receiv")
            self.do(lambda server, _: CHANGES[name](server, client, number), waits=answers)

    def bad(self) -> None:
        task = self._any()
        sent = update(1, SIZE).clone().float()
        sent[self.rng.randrange(SIZE)] = self.rng.choice((float("nan"), float("inf"), 3e38))
        given: Any = self.rng.choice((sent, sent, sent[:-1], sent.long(), np.zeros(3), "update"))
        end = self.do(lambda server, _: server.receive(task.client, given, task.version, 1), waits=True)
        if not isinstance(end, FastaggError):
            raise Wrong("a bad update counts")

    def sender(self) -> None:
        """The sender changes its buffer as soon as a rule of its own is asked, and when the log is written."""
        task = self._dispatched()
        if isinstance(end_of(self.server.flush), FastaggError):
            return
        self._answer(task, changes=True)

    def chunks(self) -> None:
        """An update in chunks, after some attempts that were abandoned, one of them in the middle of a chunk."""
        task, dtype = self._dispatched(), self.rng.choice((torch.float16, torch.float32, torch.float32))
        sent = self._sent().to(dtype)  # fp16 is small: it lies in the log
        data = sent.numpy().tobytes()
        for _ in range(self.rng.choice((0, 0, 3))):
            upload = end_of(lambda: self.server.receiving(task.client, task.version, 2, dtype=dtype))
            if not isinstance(upload, FastaggError):
                upload.write(data[:50])
                self.kept.append(upload)
                if self.rng.random() < 0.3:
                    for _ in range(2):  # the connection is gone, and the framework says so twice
                        end_of(lambda upload=upload: upload.__exit__(OSError, OSError(), None))  # type: ignore[misc]

        def meddle(upload: Any) -> None:
            """Another thread writes to it as well, while this one does."""
            found: list[Any] = []

            def writing(name: str) -> None:
                if name.startswith("upload-"):
                    self.disk.writing = None
                    thread = threading.Thread(target=lambda: found.append(end_of(lambda: upload.write(data[:20]))))
                    thread.start()
                    thread.join()

            self.disk.writing = writing
            upload.write(data[:20])
            self.disk.writing = None
            if not all(isinstance(one, fastagg.Busy) for one in found):
                raise Wrong("two threads write to one upload")

        def op(server: fastagg.Server, _: int | None) -> Any:
            with server.receiving(task.client, task.version, 2, dtype=dtype) as upload:
                if server is self.server:
                    meddle(upload)
                else:
                    upload.write(data[:20])
                upload.write(data[20:])
            upload.__exit__(None, None, None)
            return upload.receipt

        self.do(op, waits=True)
        self._count(sent)

    def slow_chunks(self) -> None:
        """An update in chunks, between which others come and checkpoints are written."""
        task, sent = self._dispatched(0), self._sent().float()
        data = sent.numpy().tobytes()
        begun = end_of(lambda: self.server.receiving(task.client, task.version, 2))
        if isinstance(begun, FastaggError):
            return
        begun.write(data[:20])
        for act in self.rng.choices((self.checkpoint, lambda: self._answer(self._dispatched(1))), k=3):
            act()

        def op(server: fastagg.Server, _: int | None) -> Any:
            upload = begun if server is self.server else server.receiving(task.client, task.version, 2)
            with upload:
                upload.write(data[20 * (upload is begun) :])
            return upload.receipt

        self.do(op, waits=True)
        self._count(sent)

    # -- operators -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        end = end_of(self.server.flush)
        if isinstance(end, FastaggError):
            raise Wrong(f"flush(): {end}")
        self.note()

    def checkpoint(self) -> None:
        newest = self._newest()
        end = end_of(self.server.checkpoint)
        if isinstance(end, FastaggError):
            raise Wrong(f"checkpoint(): {end}")
        if newest != self._newest() and len(self._log.keeper.kept) > KEEP:
            raise Wrong(f"{len(self._log.keeper.kept)} checkpoints")
        self.note()

    def checkpoints(self) -> None:
        """Behind newer checkpoints than are kept no record names an upload, and no file of one stays for ever."""
        self.kept.clear()
        for _ in range(KEEP + 1):
            self._dispatched()
            self.checkpoint()
        if self.disk.files("upload-"):
            raise Wrong(f"{self.disk.files('upload-')}: no record names them")

    def checkpoint_meanwhile(self) -> None:
        """A checkpoint is written, and from its first byte to its last answers come."""
        ends: list[Any] = []
        answered = threading.Event()

        def writing(name: str) -> None:
            if name.startswith("checkpoint-"):
                answered.wait(self.patience)

        thread = threading.Thread(target=lambda: ends.append(end_of(self.server.checkpoint)))
        tasks = [self._dispatched() for _ in range(2)]
        self.disk.writing = writing
        thread.start()
        for task in tasks:
            self._answer(task)
        answered.set()
        thread.join(self.patience)
        self.disk.writing = None
        if not ends or isinstance(ends[0], FastaggError):
            raise Wrong(f"checkpoint(): {ends or 'no return'}")

    def _handled(self, call: Callable[[], Any]) -> tuple[Any, list[Any]]:
        """A checkpoint, in the middle of which a signal's handler calls something. Return both ends."""
        ends: list[Any] = []
        self._dispatched()
        before = signal.signal(signal.SIGUSR1, lambda *_: ends.append(end_of(call)))
        mine = threading.main_thread().ident or 0

        def writing(name: str) -> None:
            if name.startswith("checkpoint-"):
                self.disk.writing = None
                signal.pthread_kill(mine, signal.SIGUSR1)
                time.sleep(0.005)

        self.disk.writing = writing
        try:
            end = end_of(self.server.checkpoint)
            self.disk.writing = None
        finally:
            signal.signal(signal.SIGUSR1, before)
        return end, ends

    def handled_checkpoint(self) -> None:
        end, ends = self._handled(self.server.checkpoint)
        if any(isinstance(one, FastaggError) for one in (end, *ends)):
            raise Wrong(f"checkpoint() in a handler: {end!r}, {ends}")
        self.note()

    def handled_close(self) -> None:
        end, ends = self._handled(self.server.close)
        if any(isinstance(one, FastaggError) for one in ends):
            raise Wrong(f"close() in a handler: {end!r}, {ends}")
        self.server.close()
        self.note()
        self.begin(self.disk, self.promised)

    def clock(self) -> None:
        """All leases end, or the clock goes back."""
        seconds = self.rng.choice((2 * LEASE, 2 * LEASE, -10.0))

        def op(server: fastagg.Server, _: int | None) -> Any:
            inside.pass_time(server, seconds)
            return server.expire()

        self.do(op, waits=False)


def _alike(one: Any, other: Any) -> bool:
    """Whether two outcomes are the same; errors of one kind are, and tasks of one version."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, fastagg.Dispatch) and isinstance(other, fastagg.Dispatch):
        return one.version == other.version
    if isinstance(one, FastaggError) or isinstance(other, FastaggError):
        return type(one) is type(other)
    if isinstance(one, fastagg.Receipt) and isinstance(other, fastagg.Receipt) and math.isnan(other.update_norm):
        return re.sub("update_norm=[^,]*", "", repr(one)) == re.sub("update_norm=[^,]*", "", repr(other))
    return bool(one == other)  # a model is measured only for the log


ACTIONS = {
    "dispatch": 8, "receive": 8, "round_trip": 20, "answered_twice": 3, "several": 4, "operation": 12, "bad": 4,
    "sender": 5, "chunks": 4, "slow_chunks": 3, "flush": 3, "checkpoint": 4, "checkpoints": 1,
    "checkpoint_meanwhile": 2, "handled_checkpoint": 1, "handled_close": 1, "clock": 2, "close": 3, "abandon": 1,
    "kill": 3, "power": 5, "kill_and_power": 2, "failed_sync": 1, "full_disk": 1, "elsewhere": 2,
    "lost_task": 4,
}  # fmt: skip


def live(name: str, seed: int, actions: int, often: tuple[str, ...] = (), patience: float = 60.0) -> list[str]:
    """Live a whole life, and return what was done.

    Args:
        often: actions that are more likely than usual.
        patience: seconds after which an action has hung.

    Raises:
        Wrong: a promise was broken.
    """
    life = Life(name, seed, patience)
    try:
        life.live(actions, often)
        return life.did
    finally:
        life.end()
