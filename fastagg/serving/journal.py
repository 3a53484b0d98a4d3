"""The journal of a server with a folder: its segments and its rare operations. C++ makes and writes the records,
without the GIL (csrc/serving/journal.h)."""

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
    """The operations that the journal's thread asks of Python: segments and uploads. If the disk is not the operating
    system's, also every write. Every method may raise OSError.

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
        """Return a segment for records from ``first`` on with room for ``needed`` bytes: its file, use and size."""
        with self._mutex:
            old = self._free.pop() if self._free else None
        try:
            segment, file = begin(self.disk, self.folder, self._number, first, max(self.segment_size, needed), old)
        except OSError:  # the file with that name is used again, whatever it contains
            if old is not None and self.disk.exists(old):
                with self._mutex:
                    self._free.append(old)
            raise
        self._number += 1
        with self._mutex:
            self._busy.append(segment)
        return file, segment.use, segment.size

    def settle(self, file: int) -> None:
        """Make sure that an upload and its name are on the disk."""
        self.disk.sync(file)
        self.disk.sync_folder(self.folder)

    def release(self, sequence: int) -> None:
        """Allow reuse of segments: no recovery will need the records up to this one."""
        with self._mutex:
            while len(self._busy) > 1 and self._busy[1].first <= sequence + 1:
                self._free.append(self._busy.pop(0).path)


class Journal:
    """The journal of one folder.

    Args:
        sequence: the number of the last record. It and all before it are on the disk.
        number: the number of the segment to begin.
        free: files of segments that are not needed any more.
        busy: segments that are still needed, in order.
        segment: bytes of one segment.

    Attributes:
        native: the journal in C++, which the road writes to (csrc/serving/journal.h).
    """

    def __init__(
        self, disk: Disk, folder: Path, sequence: int, number: int, free: Sequence[Path], busy: Sequence[Segment],
        segment: int = SEGMENT,
    ) -> None:  # fmt: skip
        self.disk = disk
        self._files = Files(disk, folder, number, free, busy, segment)
        # Files of the operating system are written without calling Python.
        self.native: Any = native.serving.Journal(
            self._files, direct=type(disk) is Disk, folder=str(folder), sequence=sequence
        )
        self.release = self._files.release

    @property
    def last(self) -> int:
        """The number of the last record, on the disk or not."""
        return int(self.native.last)

    @property
    def durable(self) -> int:
        """The number of the last record that is on the disk."""
        return int(self.native.durable)

    @property
    def pending(self) -> int:
        """How many bytes wait to be written."""
        return int(self.native.pending)

    @property
    def written(self) -> int:
        """How many bytes were written."""
        return int(self.native.written)

    @property
    def syncs(self) -> int:
        """How many times fdatasync was called."""
        return int(self.native.syncs)

    @property
    def groups(self) -> int:
        """How many groups of records were written, each with one sync."""
        return int(self.native.groups)

    def append(self, kind: int, body: bytes) -> None:
        """Queue a record for which nobody waits. The caller must hold the server's lock."""
        self.native.append(kind, body)

    def wait(self, sequence: int) -> None:
        """Wait until the record is on the disk.

        Raises:
            NotDurable: the record cannot be written.
        """
        self.native.wait(sequence)

    def flush(self) -> None:
        """Wait for all records, see :meth:`wait`."""
        self.wait(self.last)

    def close(self, seconds: float | None = None) -> None:
        """Write what is queued, and end. Records that cannot be written are dropped. Waits at most ``seconds``."""
        self.native.close(-1.0 if seconds is None else seconds)
