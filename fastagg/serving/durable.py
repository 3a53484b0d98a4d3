"""A server of a folder: all that changes it is written down, and an answer is acknowledged when that is on the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fastagg.errors import ConfigError, FastaggError
from fastagg.layout import Parsed
from fastagg.parts.names import Kind
from fastagg.serving import admission, checkpoint, records
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.journal import Entry, Journal
from fastagg.serving.leaves import Partial
from fastagg.serving.records import Arrival
from fastagg.serving.server import Answer, Outcome, Sent, Server
from fastagg.serving.snapshots import Keeper
from fastagg.serving.uploads import StoredUpload
from fastagg.storage import trees

Durability = Literal["none", "step", "arrival"]


class DurableServer(Server):
    """What :func:`fastagg.open` gives: a :class:`Server` with a journal. Its own are:

    Attributes:
        durability: which answers wait for the disk: none of them, those that make a step, or each arrival.
        folder: where it lives.
    """

    durability: Durability
    folder: Path
    _journal: Journal
    _keeper: Keeper
    _half: Callable[[], None] | None  # what makes good an interrupt between a step and its record

    def _begin(self, folder: Path, durability: Durability, journal: Journal, keeper: Keeper) -> None:
        self.folder, self.durability, self._journal, self._keeper = folder, durability, journal, keeper
        self._half = None
        self._core.ledger.notes_ended = True

    # -- clients -------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        with self._lock:
            self._ready()
            client, version = self._core.ledger.identify(client), self.version
            entry = Entry(records.DISPATCH, [records.client_of(client, version)])
            self._half = lambda: self._sent(entry, client, version)
            try:
                return super().dispatch(client)
            finally:
                self._settle()

    def hand_on(self, task: Dispatch, client: Client) -> Dispatch:
        with self._lock:
            self._ready()
            client, version = self._core.ledger.identify(client), task.version
            entry = Entry(records.HAND_ON, [records.client_of(client, version)])
            self._half = lambda: self._sent(entry, client, version)
            try:
                return super().hand_on(task, client)
            finally:
                self._settle()

    def receive(
        self,
        client: Client,
        update: Any,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        control: Any = None,
        incarnation: int | None = None,
    ) -> Receipt:
        """As :meth:`Server.receive`; with ``durability="arrival"`` it returns when the update is on the disk, with
        ``"step"`` if it made a step. Others step meanwhile.

        Raises:
            NotDurable: the disk refuses. Either nothing has changed, or the update is in the model and its record
                waits: the next one that is acknowledged acknowledges it too.
        """
        parsed, share = self._parse(update, kind), admission.share(num_samples, self.weighting)
        with self._acknowledged() as held:
            return self._arrive(held, client, version, parsed, share, control, incarnation)

    def receive_many(self, answers: Sequence[Sent]) -> list[Outcome]:
        answers = list(answers)
        if not all(isinstance(one, (tuple, list)) and 2 <= len(one) <= 4 for one in answers):
            return super().receive_many(answers)  # which says what is wrong
        return self._several([(one[0], one[1], *([*one[2:], None, None][:2]), None) for one in answers])

    def receive_models(self, answers: Sequence[Answer], *, differences: bool = False) -> list[Outcome]:
        """As :meth:`Server.receive_models`; each difference is taken, since it is what the journal holds."""

        def difference(task: Dispatch, trained: Any) -> Any:
            return lambda: trained if differences else task.delta(trained)

        self._refuse_other_kind("delta")
        return self._several([
            (task.client, difference(task, trained), task.version, num_samples, task.incarnation)
            for task, trained, num_samples in answers
        ])  # fmt: skip

    def receiving(
        self,
        client: Client,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        kind: Kind | None = None,
        dtype: Any = None,
        incarnation: int | None = None,
    ) -> StoredUpload:
        self._refuse_other_kind(kind)
        share = admission.share(num_samples, self.weighting)
        with self._lock:  # a task that is not there is refused before anything is sent
            self._ready()
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            version, _ = self._core.ledger.find(client, version)

        def finish(parsed: Parsed, upload: StoredUpload) -> Receipt:
            with self._acknowledged() as held:
                return self._arrive(held, client, version, parsed, share, None, incarnation, upload)

        return StoredUpload(self.layout.size, dtype, finish, self._journal.disk, self._keeper.new_upload())

    def receive_partial(
        self, client: Client, partial: Partial, version: int | None = None, *, incarnation: int | None = None
    ) -> Receipt:
        """Refused: the journal holds single updates.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("receive_partial: a server with a folder takes single updates; its journal has no sums")

    def close_round(self) -> float | None:
        with self._lock:
            self._ready()
            entry, before = Entry(records.CLOSE_ROUND, [b""]), self.version
            self._half = lambda: self._put(entry, self.version != before)
            try:
                found = super().close_round()
            finally:
                self._settle()
        if self.durability != "none" and entry.sequence:
            self._journal.wait(entry.sequence)
        return found

    def forget(self, client: Client, version: int | None = None) -> None:
        with self._lock:
            self._ready()
            client = self._core.ledger.identify(client)
            if version is not None:
                version, _ = self._core.ledger.find(client, version)
            super().forget(client, version)
            self._put(Entry(records.FORGET, [records.client_of(client, -1 if version is None else version)]))

    def expire(self, before: int | None = None) -> int:
        with self._lock:
            self._ready()
            try:
                ended = super().expire(before)
            finally:
                self._note_ended()
            if before is not None:
                self._put(Entry(records.EXPIRE, [records.client_of(0, before)]))
            return ended

    @property
    def lr(self) -> float:
        return self.optimizer.lr

    @lr.setter
    def lr(self, rate: float) -> None:
        with self._lock:
            self._ready()
            Server.lr.fset(self, rate)  # type: ignore[attr-defined]
            self._put(Entry(records.RATE, [records.rate(rate)]))

    # -- the disk ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all that has happened so far is on the disk.

        Raises:
            NotDurable: it cannot be.
        """
        with self._lock:
            self._settle()
        self._journal.flush()

    def checkpoint(self) -> Path:
        """Write a checkpoint now, and wait for it; ``receive`` goes on meanwhile. They are written by themselves, too.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: it could not be written; those that are there stay. NotDurable: nor could the journal.
        """
        return self._keeper.write(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As :meth:`Server.save`, from a checkpoint: nobody waits for it."""
        found = self.checkpoint()
        disk = self._journal.disk
        checkpoint.write(trees.read(disk, found, trees.read_manifest(disk, found)), Path(path))

    def close(self) -> None:
        """Write what waits and give the folder back; the server can only be read from now on.

        Raises:
            NotDurable: what waits could not be written.
        """
        try:
            with contextlib.suppress(ConfigError):  # a forked child has no lock of it
                self.flush()
        finally:
            self._keeper.close()

    def __enter__(self) -> DurableServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def memory(self) -> dict[str, int]:
        """As :meth:`Server.memory`; ``journal`` is what waits for the disk."""
        parts = super().memory()
        waits = self._journal.pending
        return {**parts, "journal": waits, "total": parts["total"] + waits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refused: the folder says what the state is."""
        raise ConfigError(f"{self.folder}: a server of a folder goes on from what is there; load it into another one")

    def __deepcopy__(self, memo: dict[int, Any]) -> Server:
        """A server without a folder."""
        with self._lock:
            copied = Server.__deepcopy__(self, memo)
            copied.__class__ = Server
            return copied

    # -- the way of an update ------------------------------------------------------------------------------------

    def _arrive(
        self, held: list[Entry], client: Client, version: int | None, parsed: Parsed, share: float, control: Any,
        incarnation: int | None, upload: StoredUpload | None = None,
    ) -> Receipt:  # fmt: skip
        """Apply an update and queue its record, which goes to ``held`` if its sender waits for it."""
        with self._turn:
            self._ready()
            ledger = self._core.ledger
            start, _ = ledger.find(client, version)
            if incarnation is not None:
                self._check_life(client, start, incarnation)
            client = ledger.identify(client)
            if control is not None:
                control = admission.control(self.layout, control).flat(torch.float32)
            life = self._core.road.life_of(start)
            arrival = Arrival(client, start, share, parsed, control, incarnation=life, held=held)
            if upload is not None:
                arrival.blob = upload.blob
            arrival.gather()
            self._keeper.before(self, client)
            self._half = lambda: self._note(arrival, upload)
            try:
                receipt = self._received(client, start, parsed, share, control)
                if not self._judging.defers:
                    arrival.decide(receipt)
                arrival.waits = self.durability == "arrival" or (self.durability == "step" and receipt.applied)
            finally:
                self._settle()
            entry = arrival.entry
            assert entry is not None
            receipt._written = self._journal, entry.sequence
        self._keeper.look(self)
        return receipt

    @contextlib.contextmanager
    def _acknowledged(self) -> Iterator[list[Entry]]:
        """Wait for those records that somebody waits for. Their bytes lie in the senders' memory: whatever happens,
        nobody reads it afterwards."""
        held: list[Entry] = []
        try:
            yield held
            if held:
                self._journal.wait(held[-1].sequence)
        except BaseException:
            self._journal.take_back(held)
            raise

    def _several(self, answers: Sequence[tuple[Any, ...]]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with self._acknowledged() as held:
            for client, update, version, num_samples, incarnation in answers:
                try:
                    parsed = self._parse(update() if callable(update) else update, None)
                    share = admission.share(num_samples, self.weighting)
                    outcomes.append(self._arrive(held, client, version, parsed, share, None, incarnation))
                except FastaggError as error:
                    outcomes.append(error)
        return outcomes

    def _ready(self) -> None:
        """Settle what an interrupt left, and refuse what could not be acknowledged."""
        self._settle()
        self._journal.check()

    def _settle(self) -> None:
        """Write down what happened in the call that is under way, or was when an interrupt ended it."""
        if self._half is not None:
            self._half()
            self._half = None

    def _put(self, entry: Entry, happened: bool = True, *, urgent: bool = False) -> None:
        if happened and not (entry.sequence and self._journal.holds(entry)):
            self._journal.append(entry, urgent=urgent)

    def _sent(self, entry: Entry, client: Client, version: int) -> None:
        self._note_ended()
        self._put(entry, self._core.ledger.owes(client, version))

    def _note(self, arrival: Arrival, upload: StoredUpload | None) -> None:
        """The record of an arrival, if it was taken: then its task is closed."""
        if self._core.ledger.owes(arrival.client, arrival.version):
            return
        if arrival.entry is None:
            parts, waits = arrival.encode(), arrival.waits
            arrival.entry = Entry(records.ARRIVAL, parts, own=not waits, upload=upload, owner=arrival)
            if waits:
                arrival.held.append(arrival.entry)
        self._put(arrival.entry, urgent=arrival.waits)
        if upload is not None:
            upload.keep()
            self._keeper.uploads[upload.number] = arrival.entry.sequence

    def _note_ended(self) -> None:
        for client, version in self._core.ledger.take_ended():
            self._put(Entry(records.FORGET, [records.client_of(client, version)]))
