"""Names and reads the files in a server's folder. The folder has these files:

lock                        locked while a server has the folder open. After a close: the number of the last record.
checkpoint-<sequence>/      the server's state after the record <sequence> of the log
journal-<number>            segments of the log, in order (docs/log-format.md)
free-<number>               a file for a future segment. Its contents have no meaning.
upload-<number>             an update that arrived in chunks. At most one record of the log refers to this file.
reserve-<number>/           room for the next checkpoint, or an unfinished checkpoint, which is never read
room-<number>               room for the log on a full volume (keeper.py)
spare                       room for an upload on a full volume (keeper.py)
noise-key                   the key of a private server's noise (recovery.py)
*.partial                   unfinished files, which are never read
"""

from __future__ import annotations

import contextlib
import re
import struct
from functools import partial
from hashlib import sha256
from typing import NamedTuple

from torch import Tensor

from fastagg._build import native
from fastagg._types import Native, Plain, State
from fastagg.durable import trees
from fastagg.durable.disk import Disk
from fastagg.errors import CheckpointError
from fastagg.storage import raw
from fastagg.storage.pieces import STREAMED, Pieces, stored_pieces

LOCK, SPARE = "lock", "spare"
PARTIAL = ".partial"
BLOCK = 4096  # bytes at the beginning of a segment, which contain its head
_ALL = (1 << 64) - 1
_DIGITS = {"checkpoint": 20, "journal": 12, "free": 12, "upload": 12, "reserve": 12, "room": 12}
_NAME = re.compile(r"([a-z]+)-(\d+)")


def name_of(kind: str, number: int) -> str:
    """Return the name of a file, or of a checkpoint's folder."""
    return f"{kind}-{number:0{_DIGITS[kind]}d}"


checkpoint_name, upload_name, reserve_name, room_name = (
    partial(name_of, kind) for kind in ("checkpoint", "upload", "reserve", "room")
)


class Contents(NamedTuple):
    """The files of a folder, by kind."""

    checkpoints: list[int]  # the checkpoints' numbers, oldest first
    segments: dict[int, str]  # number -> name, in order
    free: list[str]  # the files' names, as in the lists below
    uploads: dict[int, str]  # number -> name
    reserves: list[str]
    rooms: list[str]
    leftovers: list[str]


def contents(disk: Disk) -> Contents:
    """Return the files of a folder, by kind."""
    names, kinds = disk.names(), {kind: dict[int, str]() for kind in _DIGITS}
    for match in filter(None, map(_NAME.fullmatch, names)):
        if len(match[2]) == _DIGITS.get(match[1]):
            kinds[match[1]][int(match[2])] = match[0]
    free, reserves, rooms = (list(kinds[kind].values()) for kind in ("free", "reserve", "room"))
    leftovers = [name for name in names if name.endswith(PARTIAL)]
    return Contents([*kinds["checkpoint"]], kinds["journal"], free, kinds["upload"], reserves, rooms, leftovers)


class Checkpoint(NamedTuple):
    """The contents of a checkpoint."""

    sequence: int  # the checkpoint's number: that of the last record whose change is in `state`
    state: State
    made: Plain  # the settings with which the folder was made
    folder_id: int  # the folder's random number
    digest: bytes  # the digest of the log's records up to the checkpoint (csrc/log/segment.h)
    log_end: int  # when the checkpoint was written, the log had at least the records up to this number
    model: str  # model_digest of the parameters
    uploads: dict[int, int]  # an upload's number -> the number of the record that refers to the upload
    next_upload: int  # a number above those of all uploads before the checkpoint


def is_gone(disk: Disk, sequence: int) -> bool:
    """Return whether a checkpoint no longer exists. A running server reuses the files of its oldest checkpoints."""
    return checkpoint_name(sequence) not in disk.names()


def read_checkpoint(disk: Disk, sequence: int) -> Checkpoint:
    """Read checkpoint number ``sequence``. CheckpointError: it is damaged or missing."""
    name = checkpoint_name(sequence)
    manifest = trees.read_manifest(disk, name)
    state = trees.read(disk, name, manifest)
    try:
        checkpoint = Checkpoint(
            int(manifest["sequence"]), state, dict(manifest["made"]), int(manifest["folder"]),
            bytes.fromhex(manifest["log"]["digest"]), int(manifest["log"]["end"]), str(manifest["model"]),
            {int(number): int(record) for number, record in manifest["uploads"].items()}, int(manifest["next_upload"]),
        )  # fmt: skip
        if checkpoint.sequence != sequence:
            raise ValueError("it is of another record")
        assert checkpoint.folder_id >= 0 and checkpoint.log_end >= sequence
        assert len(checkpoint.digest) == 32 and checkpoint.next_upload >= 0
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise CheckpointError(f"{disk.path / name}: the checkpoint is damaged: {error!s:.200}") from error
    return checkpoint


def model_digest(flat: Tensor) -> str:
    """Return the SHA-256 of the bytes of a model's parameters ([d], little endian) as hexadecimal digits."""
    parameters = flat.detach().cpu().contiguous()
    return sha256(raw.at(parameters.data_ptr(), parameters.nbytes)).hexdigest()


def free_name(name: str) -> str:
    """Return the new name of a segment that becomes a free file. ``name``: the segment's name."""
    return name.replace("journal-", "free-")


def say_end(disk: Disk, sequence: int) -> None:
    """Write ``sequence``, the number of a closed log's last record, to the lock file. If a later process finds fewer
    records, some are lost. Errors of the disk are ignored, because the records themselves are on the disk."""
    with contextlib.suppress(OSError):
        disk.put(LOCK, [struct.pack("<QQ", sequence, sequence ^ _ALL)])


def said_end(disk: Disk) -> int:
    """Return the number that :func:`say_end` wrote: the last record's at the last close. 0: the number is not known."""
    if LOCK not in disk.names():
        return 0
    data = disk.read_of(LOCK)
    sequence, inverse = struct.unpack("<QQ", data) if len(data) == 16 else (0, 0)
    return int(sequence) if sequence ^ inverse == _ALL else 0


def read_log(disk: Disk, listing: Contents, after: Checkpoint) -> Native:
    """Return a reader of the log's records after a checkpoint (csrc/log/segment.h)."""
    names = list(listing.segments.values())
    files = []
    for number, name in listing.segments.items():
        with disk.opened(name, write=False) as file:
            files.append((str(disk.path / name), number, disk.size(file), disk.read(file, BLOCK, 0)))
    return native.log.Reader(
        files=files, load=lambda index: disk.read_of(names[index]), sequence=after.sequence, folder=after.folder_id,
        digest=after.digest, end=max(after.log_end, said_end(disk), *listing.checkpoints),
    )  # fmt: skip


def read_upload(disk: Disk, listing: Contents, streamed: tuple[int, int, int, int]) -> Pieces:
    """Return the update in an upload's file. ``streamed``: the upload's number, number of bytes, checksum and type."""
    number, nbytes, crc, code = streamed
    name = listing.uploads.get(number)
    if name is None:
        raise CheckpointError(f"{disk.path / upload_name(number)}: the upload is missing")
    with disk.opened(name, write=False) as file:
        data = disk.read_tensor(file, nbytes, 0)
    if len(data) != nbytes or raw.crc32c([data.numpy()]) != crc:
        raise CheckpointError(f"{disk.path / name}: the upload is damaged")
    dtype = next((dtype for dtype, its in STREAMED.items() if its == code), None)
    if dtype is None or nbytes % dtype.itemsize:
        raise CheckpointError(f"{disk.path / name}: the upload is of an unknown type")
    return stored_pieces([data.view(dtype)])
