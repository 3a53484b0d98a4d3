"""A server of a folder: all that changes it is written down, and an answer is acknowledged when that is on the disk."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fastagg._build import native
from fastagg.errors import ConfigError, FastaggError
from fastagg.layout import Parsed
from fastagg.parts.names import Kind
from fastagg.serving import admission, checkpoint, records
from fastagg.serving.dispatch import Client, Dispatch, Receipt
from fastagg.serving.journal import Journal
from fastagg.serving.leaves import Partial
from fastagg.serving.server import Answer, Outcome, Sent, Server
from fastagg.serving.snapshots import Keeper
from fastagg.serving.turns import Elsewhere
from fastagg.serving.uploads import StoredUpload
from fastagg.serving.watching import Watch
from fastagg.storage import trees

Durability = Literal["none", "step", "arrival"]
_Held = native.serving.Held


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
    _watch: Watch
    _door: Any  # csrc/serving/door.h
    _take: Any  # the way in for the usual update

    def _begin(self, folder: Path, durability: Durability, journal: Journal, keeper: Keeper) -> None:
        self.folder, self.durability, self._journal, self._keeper = folder, durability, journal, keeper
        self._watch = Watch(self)
        journal.native.mode = getattr(native.serving.Journal.Mode, durability)
        self._core.road.attach(journal.native)
        self._judging.folds = False  # the journal holds differences
        turn = native.serving.Turn(self._lock, 2**63 - 1) if self._turn is self._lock else self._turn
        self._door = native.serving.Door(turn, self._core.road)
        self._door.slow, self._door.tell_slow = self._watch.slow, self._watch.was_slow
        self._take = self._door.take

    def _in_child(self) -> None:
        super()._in_child()
        self._take = Elsewhere().refuse

    # -- clients -------------------------------------------------------------------------------------------------

    def dispatch(self, client: Client) -> Dispatch:
        try:
            return super().dispatch(client)
        except FastaggError as error:
            self._watch.refused(error)
            raise

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
        receipt: Receipt | None = None
        try:
            if kind is None and control is None and incarnation is None:
                receipt = self._take(client, update, version, num_samples)
            if receipt is None:
                with self._watch.timed(), _Held(self._journal.native) as held:
                    receipt = super().receive(
                        client, update, version, num_samples, kind=kind, control=control, incarnation=incarnation
                    )
                    held.wait()
        except FastaggError as error:
            self._watch.refused(error)
            raise
        if self._journal.native.written >= self._keeper.due:
            self._keeper.look(self)
        return receipt

    def receive_many(self, answers: Sequence[Sent]) -> list[Outcome]:
        answers = list(answers)
        with self._watch.timed(len(answers)), _Held(self._journal.native) as held:
            outcomes = super().receive_many(answers)
            held.wait()
        self._after(outcomes)
        return outcomes

    def receive_models(self, answers: Sequence[Answer], *, differences: bool = False) -> list[Outcome]:
        """As :meth:`Server.receive_models`; each difference is taken, since it is what the journal holds."""
        with self._watch.timed(len(answers)), _Held(self._journal.native) as held:
            outcomes = super().receive_models(answers, differences=differences)
            held.wait()
        self._after(outcomes)
        return outcomes

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
            self._journal.native.check()
            if incarnation is not None:
                self._check_life(client, version, incarnation)
            version, _ = self._core.ledger.find(client, version)

        def finish(parsed: Parsed, blob: Any) -> Receipt:
            with _Held(self._journal.native) as held:
                with self._turn:
                    if incarnation is not None:
                        self._check_life(client, version, incarnation)
                    receipt = self._received(client, version, parsed, share, None, blob=blob)
                held.wait()
            return receipt

        return StoredUpload(self.layout.size, dtype, finish, self._journal.disk, self._keeper)

    def receive_partial(
        self, client: Client, partial: Partial, version: int | None = None, *, incarnation: int | None = None
    ) -> Receipt:
        """As :meth:`Server.receive_partial`, and as :meth:`receive` in when it returns.

        Raises:
            NotDurable: as in :meth:`receive`.
        """
        try:
            with self._watch.timed(), _Held(self._journal.native) as held:
                receipt = super().receive_partial(client, partial, version, incarnation=incarnation)
                held.wait()
        except FastaggError as error:
            self._watch.refused(error)
            raise
        self._keeper.look(self)
        return receipt

    def close_round(self) -> float | None:
        with self._lock:
            before = self.version
            found = super().close_round()
            sequence = self._journal.last if self.version != before else 0
        if self.durability != "none":
            self._journal.wait(sequence)
        return found

    # -- the disk ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all that has happened so far is on the disk.

        Raises:
            NotDurable: it cannot be.
        """
        with self._lock:
            self._core.road.note_ended()
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

    def _received(
        self, client: Client, version: Any, parsed: Parsed, share: float, control: Any, facts: Any = None,
        blob: Any = None,
    ) -> Receipt:  # fmt: skip
        if control is not None:
            control = admission.control(self.layout, control).flat(torch.float32)
        known = not self._judging.defers
        updates, told = (None, share) if facts is None else (facts["count"], facts["total"])
        _Held.describe(*records.parts(parsed, control, updates), (told, known, blob))
        receipt = super()._received(client, version, parsed, share, control, facts)
        receipt._journal, receipt._sequence = self._journal.native, self._journal.last
        return receipt

    def _model(self) -> Any:
        me: Any = weakref.ref(self)  # what native code holds is invisible to Python's collector

        self._door.follow = lambda: me()._follow()
        return super()._model()

    def _after(self, outcomes: list[Outcome]) -> None:
        for error in outcomes:
            if isinstance(error, FastaggError):
                self._watch.refused(error)
        self._keeper.look(self)
