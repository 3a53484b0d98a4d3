"""The folder of a server: its checkpoints, its journal, its uploads, and how a recovery would read them.

lock                        locked by the process that has the folder open
checkpoint-<sequence>/      a whole state, up to and including this record
journal-<number>            segments, in order (storage/segments.py)
upload-<number>             an update that was streamed in; a record of the journal refers to it
*.partial                   unfinished files, which are never read
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastagg.errors import CheckpointError
from fastagg.storage import segments
from fastagg.storage.disk import Disk
from fastagg.storage.segments import Record, Segment

LOCK = "lock"
PARTIAL = ".partial"
_CHECKPOINT = re.compile(r"checkpoint-(\d{20})")
_UPLOAD = re.compile(r"upload-(\d{12})")


def checkpoint_name(sequence: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"checkpoint-{sequence:020d}"


def upload_name(number: int) -> str:
    """Return the name of an upload's file."""
    return f"upload-{number:012d}"


@dataclass
class Contents:
    """The contents of a folder, found by names."""

    checkpoints: list[tuple[int, Path]]  # by their sequence numbers, oldest first
    segments: list[Segment]
    others: list[tuple[int, Path]]  # named like segments, but with another beginning
    uploads: dict[int, Path]
    leftovers: list[Path]


def contents(disk: Disk, folder: Path) -> Contents:
    """List a folder's contents. Writes nothing."""
    names = disk.names(folder)
    checkpoints = [(int(m[1]), folder / m[0]) for m in map(_CHECKPOINT.fullmatch, names) if m]
    uploads = {int(m[1]): folder / m[0] for m in map(_UPLOAD.fullmatch, names) if m}
    leftovers = [folder / name for name in names if name.endswith(PARTIAL)]
    found, others = segments.chain(disk, folder)
    return Contents(checkpoints, sorted(found, key=lambda one: one.number), others, uploads, leftovers)


@dataclass
class Walk:
    """The journal's records after a sequence number, in order, each once.

    Attributes:
        last: the last good record so far. After iteration no later record can be read.
        stopped: a text that tells where the journal ends.
        needed: the segments with records after ``begin``.
    """

    disk: Disk
    found: Contents
    begin: int
    last: int = 0
    stopped: str = ""
    needed: list[Segment] = field(default_factory=list)

    def records(self) -> Iterator[Record]:
        """Yield the records.

        Raises:
            CheckpointError: a record is missing or damaged although it was on the disk, because a later one is there.
        """
        self.last = self.begin
        chain = self.found.segments
        starts = [i for i, one in enumerate(chain) if one.first <= self.begin + 1]
        if chain and not starts:
            raise CheckpointError(
                f"{chain[0].path}: the journal begins with record {chain[0].first}, and the checkpoint ends with "
                f"{self.begin}: what was between is missing"
            )
        at: Segment | None = None
        for segment in chain[starts[-1] :] if starts else []:
            if at is not None and segment.first != self.last + 1:
                raise CheckpointError(
                    f"{at.path}: record {self.last + 1} is damaged, and records from {segment.first} on are there "
                    f"({segment.path.name})"
                )
            at = segment
            self.needed.append(segment)
            view = self._view(segment.path)
            start: int | None = segments.BLOCK
            if segment.first <= self.begin:
                start = segments.place_of(view, self.begin + 1, segment.use)
            for record in () if start is None else segments.records(view, segment, start, self.last):
                self.last = record.sequence
                yield record
        self._check_end(at)

    def _check_end(self, at: Segment | None) -> None:
        wanted = self.last + 1
        later = [] if at is None else [path for number, path in self.found.others if number > at.number]
        for path, use in [*([(at.path, at.use)] if at else []), *((path, None) for path in later)]:
            good = segments.good_after(self._view(path), wanted, use)
            if good is not None:
                raise CheckpointError(
                    f"{path}: record {wanted} is damaged or missing, and it was on the disk: record {good}, which was "
                    "written later, is there"
                )
        self.stopped = "no records" if at is None else f"after record {self.last}, in {at.path.name}"

    def _view(self, path: Path) -> Any:
        file = self.disk.open(path, write=False)
        try:
            return self.disk.view(file)
        finally:
            self.disk.close(file)
