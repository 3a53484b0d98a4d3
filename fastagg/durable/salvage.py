"""Takes what can be read of a damaged folder to a new one."""

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
    """Make a new folder ``to`` of what can be read in a damaged one, which stays as it is. Its server has the state up
    to the first record that is damaged or cannot be executed. What is readable behind it is given in again: each answer
    is dispatched anew, so it counts without delay, with weight 1, and its outcome may be another one than it had. Its
    own task ends, if that was sent before.

    Args:
        make: makes the server, if the checkpoint alone cannot: FedEcho, or a rule that is not registered.

    Returns:
        Plain data: ``problem`` (why the log ended, or None), ``last`` (the last record before it), ``taken`` (answers
        behind it that count), ``refused`` (why others do not), ``version``.
    """
    path, to = _checks.path("path", path), _checks.path("to", to)
    with named(to):
        if to.exists() and os.listdir(to):
            raise CheckpointError(f"{to}: expected a new or an empty folder")
    with named(path), Disk(path) as disk:
        listing = contents(disk)
        begin, _ = newest(disk, listing)
        server = server_of(disk, begin, "salvage", make)
        problem, last = _replayed(server, disk, listing, begin)  # no limits: tasks that are given out anew end at once
        if getattr(server.direction, "privacy", None) is not None:
            server._draw_with(NoiseKey(os.urandom(32)))  # what lies behind may make the same versions of other updates
        taken, refused, rate = 0, [], server.lr
        server.lr = begin.made["optimizer"].get("lr", rate)  # which the new folder is made with, too
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
    """Execute the log as far as it goes. Return why it ended, and with which record."""
    reader: Native = None
    try:
        reader = read_log(disk, listing, begin)
        Replay(server, disk, listing).all(reader)
    except CheckpointError as error:
        return str(error), begin.sequence if reader is None else int(reader.last)
    return None, int(reader.last)


def _behind(disk: Disk, listing: Contents, last: int) -> Iterator[Native]:
    """Yield all good records behind one, in order, whatever has become of what lies between them."""
    for name in listing.segments.values():
        records = {record.sequence: record for record in native.log.records_in(disk.read_of(name))}
        for record in (records[sequence] for sequence in sorted(records) if sequence > last):
            last = record.sequence
            yield record


def _given_again(new: Server, disk: Disk, listing: Contents, record: Native) -> bool:
    """Give an answer in again, and set a learning rate. Tasks that were sent are not known any more."""
    operation = record.operation
    if operation is None:
        raise CheckpointError(record.wrong)
    if operation.kind == "lr":
        new.lr = operation.rate
    if operation.kind != "answer":
        return False
    update = None if operation.streamed is None else read_upload(disk, listing, operation.streamed)
    if operation.version != new.version:  # the task that it answers, if that was sent before: it ends with this answer
        with suppress(UnknownClient, UnknownVersion):
            new.forget(operation.client, operation.version)
    task = new.dispatch(operation.client)
    try:
        new._engine.execute(operation.again(task.version, task.incarnation), record.body, update)
    except FastaggError:
        new.forget(operation.client, task.version)
        raise
    return True
