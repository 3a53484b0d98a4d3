"""Checkpoints of an opened server, written while it goes on.

Under the lock: the version is held by reference, since it never changes; moments and sums are copied, O(d); rows of a
client cache are not. A thread writes all that, and the rows one by one. Who overwrites a row that is not written yet
copies it first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fastagg.errors import CheckpointError, FastaggError
from fastagg.serving import checkpoint
from fastagg.serving.dispatch import Client
from fastagg.serving.folder import PARTIAL, checkpoint_name, upload_name
from fastagg.serving.journal import Journal
from fastagg.storage import raw, trees
from fastagg.storage.disk import Disk

if TYPE_CHECKING:
    from fastagg.serving.server import Server

EVERY = 1 << 30  # bytes of journal after which a checkpoint is written
_log = logging.getLogger("fastagg")
_ROWS = "direction.cache.data", "direction.cache.scales"


class Cut:
    """A server's state at one moment; the caller holds its lock.

    Attributes:
        tensors: by name; those of rows are missing.
        slots: of the rows that are not copied yet -> their place in the file.
        saved: rows that were overwritten since: place -> (bytes, scales).
    """

    def __init__(self, server: Server) -> None:
        core = server._core
        cache = getattr(core.state, "cache", None)
        if cache is not None:
            cache.apart = True
        try:
            state = core.state_dict()
        finally:
            if cache is not None:
                cache.apart = False
        core.road.sent = True  # the next step does not write over this version
        for part in ("moments", "direction", "staleness"):
            state[part] = checkpoint.cloned(state[part])
        head = {"format": checkpoint.FORMAT, "config": server.config(), "layout": server.layout.spec()}
        self.state = {**head, **state}
        self.cache: Any = cache
        self.book = core.state.book
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        self.slots: dict[int, int] = {}
        if cache is not None:
            rows = state["direction"]["cache"]
            self.slots = {slot: place for place, slot in enumerate(rows["slots"])}
            rows |= {"data": trees.Apart(_ROWS[0]), "scales": trees.Apart(_ROWS[1])}
        self.rows = len(self.slots)

    def before(self, client: Client) -> None:
        """A client's update is about to be taken: what it overwrites is copied."""
        if not self.slots or not isinstance(client, int):
            return
        slot = self.book.writes(client)
        if slot in self.slots:
            self.saved[self.slots[slot]] = self.cache.copy_of(slot)
            del self.slots[slot]

    def next_row(self) -> tuple[int, tuple[Tensor, Tensor]] | None:
        """A row that is not written yet; the caller holds the server's lock."""
        if self.saved:
            place = next(iter(self.saved))
            return place, self.saved.pop(place)
        if self.slots:
            slot, place = self.slots.popitem()
            return place, self.cache.copy_of(slot)
        return None


class Keeper:
    """Keeps a folder in order: its lock, its checkpoints, and what is not needed any more.

    Args:
        lock: the open file that says whose folder it is.
        made: the settings that it was begun with.
        kept: sequence numbers of the checkpoints that are there, oldest first.
        uploads: files of uploads -> the record that tells of them.
        keep: how many checkpoints stay.
        every: bytes of journal after which one is written.
    """

    def __init__(
        self, disk: Disk, folder: Path, lock: int, made: dict[str, Any], kept: list[int], uploads: dict[int, int],
        next_upload: int, keep: int, every: int,
    ) -> None:  # fmt: skip
        self.disk, self.folder, self.made, self.kept, self.uploads = disk, folder, made, kept, uploads
        self.keep, self.every = keep, every
        self._lock_file = lock
        self._next_upload = next_upload
        self._one = threading.Lock()  # a checkpoint at a time
        self._one_number = threading.Lock()
        self._soon: threading.Thread | None = None
        self.due = every  # bytes of journal at which the next checkpoint begins
        self.journal: Journal | None = None
        self._coming: dict[int, Any] = {}  # uploads that no record told of when somebody looked

    def new_upload(self) -> tuple[int, Path]:
        """Number and file of an upload that begins."""
        with self._one_number:
            number = self._next_upload
            self._next_upload += 1
        return number, self.folder / upload_name(number)

    def upload_comes(self, number: int, blob: Any) -> None:
        """What its record will say of it."""
        with self._one_number:
            self._coming[number] = blob

    def upload_dropped(self, number: int) -> None:
        """No record will tell of it."""
        with self._one_number:
            self._coming.pop(number, None)

    def _told(self) -> dict[int, int]:
        """All uploads that a record tells of, with its number."""
        with self._one_number:
            told = {number: blob.sequence for number, blob in self._coming.items() if blob.sequence}
            self.uploads |= told
            for number in told:
                del self._coming[number]
            return dict(self.uploads)

    def look(self, server: Server) -> None:
        """Begin a checkpoint if it is time."""
        journal = self.journal
        if journal is None or journal.written < self.due or self._soon is not None:
            return
        mine = weakref.ref(server)
        self._soon = threading.Thread(target=self._write_soon, args=(mine,), name="fastagg checkpoint", daemon=True)
        self._soon.start()

    def _write_soon(self, mine: weakref.ref[Server]) -> None:
        try:
            server = mine()
            if server is not None:
                self.write(server)
        except FastaggError as error:
            _log.warning("checkpoint failed: %s", error)
            self.due = self.every + (self.journal.written if self.journal else 0)  # tried again after as many bytes
        finally:
            self._soon = None

    def write(self, server: Server) -> Path:
        """Write a checkpoint of ``server``.

        Raises:
            CheckpointError: it could not be written. NotDurable: the journal could not be.
        """
        with self._one:
            begun = time.perf_counter()
            with server._lock:
                server._core.road.note_ended()
                sequence = 0 if self.journal is None else self.journal.last
                written = 0 if self.journal is None else self.journal.written
                if sequence in self.kept:
                    return self.folder / checkpoint_name(sequence)
                cut = Cut(server)
                server._core.road.before_row = cut.before if cut.slots else None
                uploads = self._told()
            held = time.perf_counter() - begun
            partial = self.folder / (checkpoint_name(sequence) + PARTIAL)
            try:
                nbytes = self._write(server, cut, partial, (sequence, uploads))
                if self.journal is not None:
                    self.journal.wait(sequence)
                path = self.folder / checkpoint_name(sequence)
                self.disk.rename(partial, path)
                self.disk.sync_folder(self.folder)
                with server._lock:
                    server._core.state.saved(cut.state["direction"])
            except OSError as error:
                with contextlib.suppress(OSError):
                    self.disk.remove(partial)
                raise CheckpointError(f"{partial}: the checkpoint could not be written: {error}") from error
            finally:
                server._core.road.before_row = None
            self.due = written + self.every
            self.kept.append(sequence)
            self._clear()
            took = time.perf_counter() - begun
            _log.info(
                "checkpoint of version %d: %d bytes in %.2f s, lock held %.4f s",
                cut.state["version"],
                nbytes,
                took,
                held,
            )
            return path

    def _write(self, server: Server, cut: Cut, partial: Path, told: tuple[int, dict[int, int]]) -> int:
        self.disk.remove(partial)
        self.disk.make_folder(partial)
        cache = cut.cache
        tensors: dict[str, Tensor] = {}
        tree = trees.flatten(cut.state, tensors)
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        parts: dict[str, int] = {}
        if cache is not None:
            shapes[_ROWS[0]] = cache.data.dtype, (cut.rows, cache.row_bytes)
            shapes[_ROWS[1]] = cache.scales.dtype, (cut.rows, cache.row_scales)
            parts = {_ROWS[0]: cache.row_bytes, _ROWS[1]: 4 * cache.row_scales or 1}
        more = {"sequence": told[0], "made": self.made, "uploads": told[1]}
        writer = trees.Writer(self.disk, partial, shapes, parts)
        try:
            for name, tensor in tensors.items():
                writer.whole(name, tensor.detach().cpu().contiguous())
            while True:
                with server._lock:
                    row = cut.next_row()
                if row is None:
                    break
                place, (data, scales) = row
                writer.part(_ROWS[0], place, raw.at(data.data_ptr(), data.nbytes))
                if scales.numel():
                    writer.part(_ROWS[1], place, raw.at(scales.data_ptr(), scales.nbytes))
            writer.finish(tree, more)
        finally:
            writer.close()
        return writer.nbytes

    def _clear(self) -> None:
        """Remove what no recovery will ask for."""
        with contextlib.suppress(OSError):  # it is tried again after the next one
            while len(self.kept) > self.keep:
                self.disk.remove(self.folder / checkpoint_name(self.kept[0]))
                self.kept.pop(0)
            if self.journal is not None:
                self.journal.release(self.kept[0])
            for number, sequence in self._told().items():
                if sequence <= self.kept[0]:
                    self.disk.remove(self.folder / upload_name(number))
                    del self.uploads[number]

    def close(self, seconds: float | None = None) -> None:
        """End the journal and give the folder back; wait for each no longer than ``seconds``."""
        soon = self._soon
        if soon is not None and soon is not threading.current_thread():
            soon.join(seconds)
        if self.journal is not None:
            self.journal.close(seconds)
        if self._lock_file >= 0:
            self.disk.close(self._lock_file)
            self._lock_file = -1
