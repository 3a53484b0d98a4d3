"""A journal's files: records one after the other, in segments of a fixed size that are reused.

A segment begins with a block that identifies it: its number in the chain, a random number for this use of the file, and
the sequence number of its first record. Records are written in groups. Each group begins on a new block, so no block is
written again after it was synced. A torn write can therefore damage only records that were not acknowledged yet. Every
record has the number of the last record that was on the disk when it was written. So later records tell recovery
whether a bad record may be missing (after a crash) or must not be (damage).

    segment: magic, crc, number, use, first | zeros up to a block | groups
    record:  magic, crc, use, sequence, synced, length, kind | body | zeros up to 8 bytes

csrc/serving/journal.cpp writes the records. This module makes segments and reads everything.
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
_HEAD = struct.Struct("<8sIIQQQ")  # magic, CRC of what follows, format, number, use, first
_SEGMENT = b"FASTAGGJ"
_RECORD = struct.Struct("<4sIQQQQB7x")  # magic, CRC of what follows, use, sequence, synced, length, kind
_MAGIC = b"FAGR"
_FORMAT = 1
_NAME = re.compile(r"journal-(\d{12})")
HEADER = _RECORD.size


class Record(NamedTuple):
    """One record and its place."""

    sequence: int
    synced: int  # all records up to this number were on the disk when it was written
    kind: int
    body: memoryview
    end: int  # where it ends in its segment


@dataclass
class Segment:
    """One file of the chain.

    Attributes:
        number: its place in the chain.
        use: a random number for this use of the file. Its records repeat it.
        first: the sequence number of its first record.
        size: its size in bytes.
    """

    path: Path
    number: int
    use: int
    first: int
    size: int


def name_of(number: int) -> str:
    """Return the name of a segment's file."""
    return f"journal-{number:012d}"


def begin(disk: Disk, folder: Path, number: int, first: int, size: int, old: Path | None) -> tuple[Segment, int]:
    """Make a segment ready for records and open it. ``old``: a file that is not needed any more and is reused.

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
    """Return the segments of a folder in order. Also return (number, path) of files that are named like segments but
    begin differently: their use had only begun, or they are damaged."""
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
    """Yield the good records of a segment, from ``start`` on, after number ``sequence``, up to the first bad one."""
    at, wanted = start, segment.first if sequence is None else sequence + 1
    while True:
        found = _record_at(view, at, segment.use)
        if (found is None or found.sequence != wanted) and at % BLOCK:
            at += -at % BLOCK  # where the next group begins
            found = _record_at(view, at, segment.use)
        if found is None or found.sequence != wanted:
            return
        yield found
        at, wanted = found.end, wanted + 1


def place_of(view: Any, sequence: int, use: int) -> int | None:
    """Return where a record begins, if it is there and good."""
    for at in _magic(view):
        if _RECORD.unpack_from(view, at)[2:4] == (use, sequence) and _record_at(view, at, use) is not None:
            return at
    return None


def good_after(view: Any, sequence: int, use: int | None) -> int | None:
    """Return the first good record after the bad record ``sequence``. It proves that the bad one was on the disk."""
    for at in _magic(view):
        found = _record_at(view, at, use)
        if found is not None and found.synced >= sequence:
            return found.sequence
    return None


def _magic(view: Any) -> Iterator[int]:
    """Yield the places where records may begin."""
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
