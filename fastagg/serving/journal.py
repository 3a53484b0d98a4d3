"""The journal of an opened server: what happened goes into a queue, and one thread takes the queue to the disk."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastagg.errors import Busy, NotDurable
from fastagg.storage.disk import Disk
from fastagg.storage.segments import BLOCK, HEADER, Segment, begin, frame

SEGMENT = 64 << 20  # bytes
_GROUP = 32 << 20  # bytes that one sync may wait for
_PENDING = 256 << 20  # bytes that may wait for the disk where nobody waits for them
_IDLE = 0.05  # seconds that a record may wait that nobody waits for
_AGAIN = 0.5  # seconds until a full disk is asked again
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Entry:
    """A record on its way to the disk.

    Args:
        kind: see :mod:`fastagg.serving.records`.
        parts: its body. Unless ``own`` the bytes are the sender's, who waits until they are on the disk.
        upload: a file that must be on the disk before it.
        owner: what holds the memory of the parts.
    """

    __slots__ = ("kind", "nbytes", "owned", "owner", "parts", "sequence", "upload")

    def __init__(
        self, kind: int, parts: Sequence[Any], *, own: bool = True, upload: Any = None, owner: Any = None
    ) -> None:
        self.sequence = 0  # until it is in the queue
        self.kind, self.parts, self.upload, self.owner = kind, parts, upload, owner
        self.nbytes = HEADER + sum(map(len, parts))
        self.owned = len(parts) == 1
        if own:
            self.own()

    def own(self) -> None:
        """The sender may use its memory again."""
        if not self.owned:
            self.parts = [bytes(part) for part in self.parts]
            self.owned = True


class Journal:
    """The journal of one folder.

    Args:
        sequence: of the last record that is there, all of which are on the disk.
        number: of the segment to begin.
        free: files of segments that are not needed any more.
        busy: segments that still are, in order.

    Attributes:
        durable: the last record that is on the disk.
        pending: bytes that wait for the disk.
        syncs, groups, written: counts: calls of fdatasync, groups, and bytes.
    """

    def __init__(
        self, disk: Disk, folder: Path, sequence: int, number: int, free: Sequence[Path], busy: Sequence[Segment],
        segment: int = SEGMENT,
    ) -> None:  # fmt: skip
        self.disk, self.folder, self.segment_size = disk, folder, segment
        self.durable = sequence
        self.syncs = self.groups = self.written = self.waiting = 0
        self.max_waiting: int | None = None
        self._number, self._free, self._busy = number, list(free), list(busy)
        self._file, self._at, self._segment = -1, 0, None  # type: int, int, Segment | None
        self._queue: deque[Entry] = deque()  # from the one after the last durable one on
        self.pending = 0
        self._begun = -1  # the last record of the group that is being written
        self._urgent = self._closing = False
        self.failure: OSError | None = None
        self._final = False  # the failure stays
        # Taken and given back in C: a signal falls before or after. Condition's own methods are Python's.
        self._mutex = threading.RLock()
        self._changed = threading.Condition(self._mutex)
        self._thread = threading.Thread(target=self._work, name="fastagg journal", daemon=True)
        self._thread.start()

    # -- those who write -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse what could not be acknowledged, before anything has changed.

        Raises:
            NotDurable: the disk refuses. Busy: ``max_waiting`` acknowledgements wait.
        """
        if self.failure is not None:
            self._ask_again()
            raise self._refusal()
        if self.max_waiting is not None and self.waiting >= self.max_waiting:
            raise Busy(f"{self.waiting} answers wait for the journal already (max_waiting): send this one later")

    @property
    def last(self) -> int:
        """The last record, wherever it is."""
        with self._mutex:
            return self._queue[-1].sequence if self._queue else self.durable

    def append(self, entry: Entry, *, urgent: bool = False) -> None:
        """Queue a record; an ``urgent`` one is somebody's who will wait. The caller holds the server's lock, so that
        records are in the order in which things happened."""
        with self._mutex:
            while self.pending > _PENDING and self.failure is None and not urgent:
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait()
            entry.sequence = (self._queue[-1].sequence if self._queue else self.durable) + 1
            self.pending += entry.nbytes
            self._queue.append(entry)  # an interrupt falls before it or after it
            if (urgent or self.pending > _GROUP // 4) and not self._urgent:
                self._urgent = True
                self._changed.notify_all()
            elif len(self._queue) == 1:
                self._changed.notify_all()

    def holds(self, entry: Entry) -> bool:
        """Whether :meth:`append` came to its end."""
        with self._mutex:
            return entry in self._queue or 0 < entry.sequence <= self.durable

    def wait(self, sequence: int) -> None:
        """Until the record is on the disk.

        Raises:
            NotDurable: it cannot be.
        """
        with self._mutex:
            self.waiting += 1
            try:
                while self.durable < sequence:
                    if self.failure is not None:
                        raise self._refusal()
                    if not self._urgent:
                        self._urgent = True
                        self._changed.notify_all()
                    self._changed.wait()
            finally:
                self.waiting -= 1

    def take_back(self, entries: Sequence[Entry]) -> None:
        """Their sender does not wait any longer, and may use its memory again: what is not written is copied."""
        with self._mutex:
            while any(self.durable < entry.sequence <= self._begun for entry in entries):
                self._changed.wait()
            for entry in entries:
                entry.own()

    def flush(self) -> None:
        """:meth:`wait` for all records."""
        self.wait(self.last)

    def release(self, sequence: int) -> None:
        """No recovery will ask for records up to this one: their segments are used again."""
        with self._mutex:
            while len(self._busy) > 1 and self._busy[1].first <= sequence + 1:
                self._free.append(self._busy.pop(0).path)

    def close(self, seconds: float | None = None) -> None:
        """Write what waits, and end. What cannot be written is given up. The wait is no longer than ``seconds``."""
        with self._mutex:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _refusal(self) -> NotDurable:
        said = f"{type(self.failure).__name__}: {self.failure}"
        if self._closing:
            return NotDurable(f"{self.folder}: this server is closed")
        if self._final:
            return NotDurable(f"{self.folder}: the disk lost what was written to it ({said}); open the folder again")
        return NotDurable(f"{self.folder}: the journal cannot be written: {said}. It is tried again")

    def _ask_again(self) -> None:
        with self._mutex:
            self._urgent = True
            self._changed.notify_all()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._mutex:
                while not self._queue and not self._closing:
                    self._urgent = False
                    self._changed.wait()
                if self._queue and not self._urgent and not self._closing:
                    self._changed.wait(_IDLE)
                if self.failure is not None and not self._closing:
                    self._changed.wait(_AGAIN)
                if not self._queue or self._final or (self._closing and self.failure is not None):
                    self._end()
                    return
                group: list[Entry] = []
                size = 0
                for entry in self._queue:  # they stay until they are on the disk
                    if group and size + entry.nbytes > _GROUP:
                        break
                    group.append(entry)
                    size += entry.nbytes
                self._begun = group[-1].sequence
                self._urgent = False
            try:
                self._write(group)
                error = None
            except OSError as found:
                error = found
            with self._mutex:
                self.failure, self._begun = error, -1
                if error is None:
                    for entry in group:
                        if entry.upload is not None:
                            self.disk.close(entry.upload.file)
                        self._queue.popleft()
                        self.pending -= entry.nbytes
                    self.durable = group[-1].sequence
                    if self._queue:
                        self._urgent = True
                self._changed.notify_all()
                if self._final:
                    self._end()
                    return

    def _end(self) -> None:
        if self._file >= 0:
            self.disk.close(self._file)
            self._file = -1
        if self.failure is None:
            self.failure = OSError("closed")
        self._final = True
        self._changed.notify_all()

    def _write(self, group: list[Entry]) -> None:
        needed = sum(entry.nbytes + 8 for entry in group)
        if self._segment is None or self._at + needed > self._segment.size:
            self._next_segment(group[0].sequence, needed + BLOCK)
        assert self._segment is not None
        buffers: list[Any] = []
        for entry in group:
            if entry.upload is not None:
                self._sync(entry.upload.file)
                self.disk.sync_folder(self.folder)
            buffers += frame(self._segment.use, entry.sequence, self.durable, entry.kind, entry.parts)
        end = self.disk.write(self._file, buffers, self._at)
        self._sync(self._file)
        self.groups += 1
        self.written += end - self._at
        self._at = end + -end % BLOCK

    def _sync(self, file: int) -> None:
        try:
            self.disk.sync(file)
        except OSError:
            self._final = True  # what the system could not write it may have thrown away: it must not be asked again
            raise
        self.syncs += 1

    def _next_segment(self, first: int, needed: int) -> None:
        if self._file >= 0:
            self.disk.close(self._file)
            self._file = -1
        self._segment = None
        with self._mutex:
            old = self._free.pop() if self._free else None
        try:
            self._segment, self._file = begin(
                self.disk, self.folder, self._number, first, max(self.segment_size, needed), old
            )
        except OSError:  # whatever is there by that name is used again
            if old is not None and self.disk.exists(old):
                with self._mutex:
                    self._free.append(old)
            raise
        self._number, self._at = self._number + 1, BLOCK
        with self._mutex:
            self._busy.append(self._segment)
