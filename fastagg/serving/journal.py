"""The journal of an opened server: its segments, and what is rare. Records are made and written in C++, without the GIL
(csrc/serving/journal.h)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastagg._build import native
from fastagg.storage.disk import Disk
from fastagg.storage.segments import Segment, begin

SEGMENT = 64 << 20  # bytes


class Files:
    """What the thread that writes asks of Python: segments and uploads, and every write where a disk is not the
    system's own. Every method may raise OSError.

    Args:
        disk, folder, number, free, busy, segment: as :class:`Journal`'s.
    """

    def __init__(
        self, disk: Disk, folder: Path, number: int, free: Sequence[Path], busy: Sequence[Segment], segment: int
    ) -> None:
        self.disk, self.folder, self.segment_size = disk, folder, segment
        self._number, self._free, self._busy = number, list(free), list(busy)
        self._mutex = threading.Lock()
        self.write, self.sync, self.close = disk.write, disk.sync, disk.close

    def next_segment(self, first: int, needed: int) -> tuple[int, int, int]:
        """A segment for records from ``first`` on, with room for so many bytes: its file, use and size."""
        with self._mutex:
            old = self._free.pop() if self._free else None
        try:
            segment, file = begin(self.disk, self.folder, self._number, first, max(self.segment_size, needed), old)
        except OSError:  # whatever is there by that name is used again
            if old is not None and self.disk.exists(old):
                with self._mutex:
                    self._free.append(old)
            raise
        self._number += 1
        with self._mutex:
            self._busy.append(segment)
        return file, segment.use, segment.size

    def settle(self, file: int) -> None:
        """An upload is on the disk, and so is its name."""
        self.disk.sync(file)
        self.disk.sync_folder(self.folder)

    def release(self, sequence: int) -> None:
        """No recovery will ask for records up to this one: their segments are used again."""
        with self._mutex:
            while len(self._busy) > 1 and self._busy[1].first <= sequence + 1:
                self._free.append(self._busy.pop(0).path)


class Journal:
    """The journal of one folder.

    Args:
        sequence: of the last record that is there, all of which are on the disk.
        number: of the segment to begin.
        free: files of segments that are not needed any more.
        busy: segments that still are, in order.
        segment: bytes of one.

    Attributes:
        native: what the road writes to (csrc/serving/journal.h).
    """

    def __init__(
        self, disk: Disk, folder: Path, sequence: int, number: int, free: Sequence[Path], busy: Sequence[Segment],
        segment: int = SEGMENT,
    ) -> None:  # fmt: skip
        self.disk = disk
        self._files = Files(disk, folder, number, free, busy, segment)
        # A file of the system's own is written to without asking Python.
        self.native: Any = native.serving.Journal(
            self._files, direct=type(disk) is Disk, folder=str(folder), sequence=sequence
        )
        self.release = self._files.release

    @property
    def last(self) -> int:
        """The last record, wherever it is."""
        return int(self.native.last)

    @property
    def durable(self) -> int:
        """The last record that is on the disk."""
        return int(self.native.durable)

    @property
    def pending(self) -> int:
        """Bytes that wait for the disk."""
        return int(self.native.pending)

    @property
    def written(self) -> int:
        """Bytes that were written."""
        return int(self.native.written)

    @property
    def syncs(self) -> int:
        """Calls of fdatasync."""
        return int(self.native.syncs)

    @property
    def groups(self) -> int:
        """Groups of records that were written with one sync."""
        return int(self.native.groups)

    def append(self, kind: int, body: bytes) -> None:
        """Queue a record that nobody waits for; the caller holds the server's lock."""
        self.native.append(kind, body)

    def wait(self, sequence: int) -> None:
        """Until the record is on the disk.

        Raises:
            NotDurable: it cannot be.
        """
        self.native.wait(sequence)

    def flush(self) -> None:
        """:meth:`wait` for all records."""
        self.wait(self.last)

    def close(self, seconds: float | None = None) -> None:
        """Write what waits, and end. What cannot be written is given up. The wait is no longer than ``seconds``."""
        self.native.close(-1.0 if seconds is None else seconds)
