"""A journal's files: records one after the other, in segments of a fixed size that are used again.

A segment begins with a block that says which it is: its number in the chain, a random number of this use of the file,
and the sequence number of its first record. Records are written in groups. A group begins on a block of its own, so
that no block is ever written again after it was synced: a torn write can only damage what nobody was promised. Every
record says up to which record all was on the disk when it was written. So what recovery finds after a bad record
tells whether that one may be missing (a crash), or must not be (damage).

    segment: magic, crc, number, use, first | zeros up to a block | groups
    record:  magic, crc, use, sequence, synced, length, kind | body | zeros up to 8 bytes

csrc/serving/journal.cpp writes the records; segments begin here, and all is read here.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fastagg.errors import CheckpointError
from fastagg.storage import raw
from fastagg.storage.disk import Disk

BLOCK = 4096
_HEAD = struct.Struct("<8sIIQQQ")  # magic, crc of what follows, format, number, use, first
_SEGMENT = b"FASTAGGJ"
_RECORD = struct.Struct("<4sIQQQQB7x")  # magic, crc of what follows, use, sequence, synced, length, kind
_MAGIC = b"FAGR"
_FORMAT = 1
_NAME = re.compile(r"journal-(\d{12})")
HEADER = _RECORD.size


class Record(NamedTuple):
    """One record, where it lies."""

    sequence: int
    synced: int  # all records up to this one were on the disk when it was written
    kind: int
    body: memoryview
    end: int  # where it ends in its segment


@dataclass
class Segment:
    """One file of the chain.

    Attributes:
        number: its place in the chain.
        use: of the file: a random number that its records repeat.
        first: sequence number of its first record.
        size: bytes.
    """

    path: Path
    number: int
    use: int
    first: int
    size: int


def name_of(number: int) -> str:
    """The file of a segment."""
    return f"journal-{number:012d}"


def begin(disk: Disk, folder: Path, number: int, first: int, size: int, old: Path | None) -> tuple[Segment, int]:
    """A segment that is ready for records, and its open file. ``old``: a file that is not needed any more.

    Raises:
        OSError: there is no room for it, or the disk refused.
    """
    path, use = folder / name_of(number), int.from_bytes(os.urandom(8), "little")
    if old is not None and old != path:
        disk.rename(old, path)
    file = disk.open(path, create=True)
    try:
        size = max(-(-size // BLOCK) * BLOCK, disk.size(file))
        disk.allocate(file, size)
        tail = struct.pack("<IQQQ", _FORMAT, number, use, first)
        crc = raw.crc32c([tail])
        disk.write(file, [(_SEGMENT + crc.to_bytes(4, "little") + tail).ljust(BLOCK, b"\0")], 0)
        disk.sync(file)
        disk.sync_folder(folder)
    except BaseException:
        disk.close(file)
        raise
    return Segment(path, number, use, first, size), file


def chain(disk: Disk, folder: Path) -> tuple[list[Segment], list[tuple[int, Path]]]:
    """The segments of a folder in their order, and (number, path) of files that are named so but do not begin so: their
    use had only begun, or they are damaged."""
    found, others = [], []
    for name in disk.names(folder):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        path, number = folder / name, int(match[1])
        file = disk.open(path, write=False)
        try:
            head, size = disk.read(file, _HEAD.size, 0), disk.size(file)
        finally:
            disk.close(file)
        whole = len(head) == _HEAD.size and head[:8] == _SEGMENT
        if whole and raw.crc32c([head[12:]]) == int.from_bytes(head[8:12], "little"):
            _, _, form, its, use, first = _HEAD.unpack(head)
            if form != _FORMAT:
                raise CheckpointError(f"{path}: a journal of format {form}; this version reads format {_FORMAT}")
            if its == number:
                found.append(Segment(path, number, use, first, size))
                continue
        others.append((number, path))
    return found, others


def records(view: Any, segment: Segment, start: int = BLOCK, sequence: int | None = None) -> Iterator[Record]:
    """The good records of a segment, from ``start`` and the one after ``sequence`` on, up to the first bad one."""
    at, wanted = start, segment.first if sequence is None else sequence + 1
    while True:
        found = _record_at(view, at, segment.use)
        if (found is None or found.sequence != wanted) and at % BLOCK:
            at += -at % BLOCK  # the next group's
            found = _record_at(view, at, segment.use)
        if found is None or found.sequence != wanted:
            return
        yield found
        at, wanted = found.end, wanted + 1


def place_of(view: Any, sequence: int, use: int) -> int | None:
    """Where a record begins, if it is there and good."""
    for at in _magic(view):
        if _RECORD.unpack_from(view, at)[2:4] == (use, sequence) and _record_at(view, at, use) is not None:
            return at
    return None


def good_after(view: Any, sequence: int, use: int | None) -> int | None:
    """The first good record after a bad one, ``sequence``, which proves that the bad one had been on the disk."""
    for at in _magic(view):
        found = _record_at(view, at, use)
        if found is not None and found.synced >= sequence:
            return found.sequence
    return None


def _magic(view: Any) -> Iterator[int]:
    """Where records may begin."""
    at = view.find(_MAGIC, 0)
    while at >= 0:
        if at % 8 == 0 and at + HEADER <= len(view):
            yield at
        at = view.find(_MAGIC, at + 4)


def _record_at(view: Any, at: int, use: int | None) -> Record | None:
    data = memoryview(view)
    if at + HEADER > len(data) or data[at : at + 4] != _MAGIC:
        return None
    _, crc, its, sequence, synced, length, kind = _RECORD.unpack_from(data, at)
    if (use is not None and its != use) or length > len(data) - at - HEADER:
        return None
    if raw.crc32c([data[at + 8 : at + HEADER + length]]) != crc:
        return None
    end = at + HEADER + length
    return Record(sequence, synced, kind, data[at + HEADER : end], end + -end % 8)
