"""Makes a new folder from the readable records of a damaged folder. ``fastagg doctor --salvage`` calls this."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from fastagg import _checks
from fastagg._build import native
from fastagg._types import Native, Plain
from fastagg.durable import opening
from fastagg.durable.disk import Disk, named
from fastagg.durable.doctor import server_of
from fastagg.durable.folder import Checkpoint, Contents, contents, read_log, read_upload
from fastagg.durable.recovery import Replay, newest
from fastagg.errors import CheckpointError, FastaggError, UnknownClient, UnknownVersion
from fastagg.rules.privacy import NoiseKey
from fastagg.server.server import Server


def salvage(
    path: str | os.PathLike[str], to: str | os.PathLike[str], *, make: Callable[[], Server] | None = None
) -> Plain:
    """Make a new folder ``to`` from the readable records of a damaged folder. The damaged folder does not change.

    The new server begins with the state before the first record that is damaged or cannot be executed. Then it takes
    the readable answers after that record. For each answer a new task is dispatched. So the answer has no delay, and
    may have another outcome than before. If the answer's old task is of another version, and open, it ends.

    Args:
        make: a function that makes the server. Needed only for FedEcho, or if a part is not registered.

    Returns:
        Plain data: ``path``, ``to``, ``problem`` (the first problem of the log, or None), ``last`` (the number of the
        last record before the problem), ``taken`` (the number of later answers that count), ``refused`` (a text for
        each other record that could not be repeated), ``version`` (the new server's).
    """
    path, to = _checks.path("path", path), _checks.path("to", to)
    with named(to):
        if to.exists() and os.listdir(to):
            raise CheckpointError(f"{to}: expected a new or an empty folder")
    with named(path), Disk(path) as disk:
        listing = contents(disk)
        begin, _ = newest(disk, listing)
        server = server_of(disk, begin, "salvage", make)
        problem, last = _replayed(server, disk, listing, begin)
        if getattr(server.direction, "privacy", None) is not None:
            # The new folder gets a new key. From here on its versions differ from the old folder's versions with the
            # same numbers, and two different models must not have the same noise.
            server._draw_with(NoiseKey(os.urandom(32)))
        taken, refused, rate = 0, [], server.lr
        server.lr = begin.made["optimizer"].get("lr", rate)  # so that the new folder has the old folder's settings
        with opening.open(to, lambda: server, "none") as new:
            if server.lr != rate:
                new.lr = rate
            for record in _behind(disk, listing, last):
                try:
                    taken += _given_again(new, disk, listing, record)
                except (FastaggError, OSError) as error:
                    refused.append(f"record {record.sequence}: {error}")
            new.checkpoint()
            return {
                "path": str(disk.path), "to": str(to), "problem": problem, "last": last, "taken": taken,
                "refused": refused, "version": new.version,
            }  # fmt: skip


def _replayed(server: Server, disk: Disk, listing: Contents, begin: Checkpoint) -> tuple[str | None, int]:
    """Execute the log up to its end or its first problem. Return the problem (or None) and the number of the last
    executed record."""
    reader: Native = None
    try:
        reader = read_log(disk, listing, begin)
        Replay(server, disk, listing).all(reader)
    except CheckpointError as error:
        return str(error), begin.sequence if reader is None else int(reader.last)
    return None, int(reader.last)


def _behind(disk: Disk, listing: Contents, last: int) -> Iterator[Native]:
    """Yield the undamaged records after number ``last``, in order. Damaged records are left out."""
    for name in listing.segments.values():
        records = {record.sequence: record for record in native.log.records_in(disk.read_of(name))}
        for record in (records[sequence] for sequence in sorted(records) if sequence > last):
            last = record.sequence
            yield record


def _given_again(new: Server, disk: Disk, listing: Contents, record: Native) -> bool:
    """Repeat a record if it is an answer or sets a learning rate. Return whether the record is an answer. An answer
    gets a new task, because the record of its own task may be lost."""
    operation = record.operation
    if operation is None:
        raise CheckpointError(record.wrong)
    if operation.kind == "lr":
        new.lr = operation.rate
    if operation.kind != "answer":
        return False
    update = None if operation.streamed is None else read_upload(disk, listing, operation.streamed)
    if operation.version != new.version:  # end the answer's own task, if it is open
        with suppress(UnknownClient, UnknownVersion):
            new.forget(operation.client, operation.version)
    task = new.dispatch(operation.client)
    try:
        new._engine.execute(operation.again(task.version, task.incarnation), record.body, update)
    except FastaggError:
        new.forget(operation.client, task.version)
        raise
    return True
