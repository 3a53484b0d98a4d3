"""Opens a server's folder (``fastagg.open``). The server is new, or continues from the state in the folder."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch

from fastagg import _checks
from fastagg._build import native
from fastagg._keywords import checked
from fastagg._types import Plain
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import BLOCK, LOCK, Contents, checkpoint_name, contents, free_name
from fastagg.durable.keeper import EVERY, SLACK, Keeper
from fastagg.durable.log import Durability, Log
from fastagg.durable.recovery import Recovery, made_of, no_server, recover, take_key
from fastagg.durable.uploads import Uploads
from fastagg.errors import Busy, CheckpointError
from fastagg.server import engine
from fastagg.server.server import Server
from fastagg.server.watching import ServerWatch, watch_of

# A segment of the log has at most `checkpoint_every / 16` bytes, or `_SMALL` if that is more, but at most `SEGMENT`.
SEGMENT, _SMALL = 64 << 20, 256 << 10
_PENDING = 256 << 20  # an answer waits before its step while records of more bytes than this wait for the log
_CHUNK = 16 << 20  # the most bytes that are read at a time
_SLOW = 1.0  # an answer that takes more seconds than this is logged
_log = logging.getLogger("fastagg")


@checked
def open(
    path: str | os.PathLike[str],
    make: Callable[[], Server],
    durability: Durability = "arrival",
    *,
    keep: int = 2,
    checkpoint_every: int = EVERY,
    keep_history: bool = False,
) -> Server:
    """Return the server of the folder ``path``. If the folder is empty, ``make`` makes a new server. Otherwise the
    server is restored bit for bit from the newest readable checkpoint and all later records of the log.

    Args:
        path: the folder. It is created if it does not exist.
        make: a function that makes the server. The server's settings must be those with which the folder was made. Only
            some limits (``lease``, ``max_delay``, ``max_open_per_client``, ``max_clients``, ``max_waiting``) and
            ``fastest_steps`` may differ.
        durability: when ``receive`` returns. ``arrival``: when its update is on the disk. ``step``: if the update makes
            a step, when this and all earlier updates are on the disk, and otherwise without a wait. ``none``: without a
            wait, so a crash can lose the updates that are not on the disk yet. With every setting, an update of over
            256 KiB that comes in chunks (``receiving``) is on the disk before its step. ``receipt.durable`` tells
            whether an update is on the disk. ``server.flush()`` waits for the disk.
        keep: the number of checkpoints that are kept, >= 1. The log after the oldest of them is kept, too.
        checkpoint_every: the bytes of log and uploads after which a checkpoint is written in the background.
        keep_history: whether to also keep the oldest checkpoint and the log after it, for :func:`fastagg.audit`.

    Raises:
        Busy: another process, or another server of this process, has the folder open.
        CheckpointError: the folder is damaged, or could not be read or written. Nothing has changed.
            ``fastagg doctor`` reports the damage. ``fastagg doctor --salvage NEW`` makes a new folder with the state
            before a damaged record, and the readable updates after that record.
        ConfigError: a setting is refused, or ``make`` makes a server that differs from the folder's.

    Example:
        >>> with fastagg.open("state/", lambda: fastagg.FedBuff(torch.zeros(2), buffer_size=1)) as server:
        ...     task = server.dispatch("ann")
        ...     server.receive("ann", torch.ones(2)).durable
        True
        >>> with fastagg.open("state/", lambda: fastagg.FedBuff(torch.zeros(2), buffer_size=1)) as server:
        ...     server.version  # the next process goes on
        1
    """
    path = _checks.path("path", path)
    _checks.fits("durability", durability, Durability)
    if not callable(make) or isinstance(make, torch.nn.Module):
        raise no_server(make)
    with named(path):
        if path.exists() and not path.is_dir():
            raise CheckpointError(
                f"{path}: expected a folder, got a file; fastagg.load(path) reads one of server.save(path)"
            )
        disk = Disk(path, create=True)
    try:
        return open_on(disk, make, durability, keep=keep, checkpoint_every=checkpoint_every, keep_history=keep_history)
    except BaseException:
        disk.leave()
        raise


def open_on(
    disk: Disk, make: Callable[[], Server], durability: Durability, *, keep: int = 2, checkpoint_every: int = EVERY,
    segment: int = SEGMENT, keep_history: bool = False,
) -> Server:  # fmt: skip
    """Open a folder on ``disk``, as :func:`open` does.

    Args:
        segment: the most bytes of a segment, which is one file of the log.
    """
    _checks.whole("keep", keep, least=1)
    _checks.whole("checkpoint_every", checkpoint_every, least=1)
    journal = keeper = None

    try:
        with named(disk.path):
            if not disk.lock(LOCK):
                raise Busy(f"{disk.path}: it is open already, here or in another process; close() that server first")
            limits = {"keep": keep, "every": checkpoint_every, "slack": min(segment, SLACK)}
            server, keeper, start, replayed, is_new = _opened(disk, lambda: _made(make), limits)
        keeper.history = int(keep_history)
        start |= {
            "segment_bytes": min(segment, max(_SMALL, checkpoint_every // 16)),
            "pending_bytes": min(_PENDING, keeper.room // 2),
        }
        with named(disk.path):  # an OSError is raised if the system refuses to start a thread
            journal = native.log.Journal(disk, {"folder": str(disk.path), **start})
            journal.mode = durability
            if server.max_waiting is not None:
                journal.max_waiting = server.max_waiting
            log = Log(disk, journal, keeper, keeper.uploads, durability)
            keeper.start(journal, replayed)
        watch = watch_of(server) or ServerWatch()  # `make` may have called `fastagg.watch`
        server._attach(log, watch)
        watch.begin(server, min(watch.slow, _SLOW))
        # From the next version on, versions belong to a new incarnation (a random number). The number tells them apart
        # from versions with the same numbers that the last process made but lost before they were on the disk.
        if not is_new:
            server._engine.begin_incarnation(server.version + 1, engine.new_incarnation())
        weakref.finalize(server, log.close, 5.0)  # waits at most 5 seconds for each thread
        return server
    except BaseException:
        if keeper is not None:
            keeper.close()
        if journal is not None:
            journal.close(-1.0)
        disk.unlock()
        raise


class _Opening(NamedTuple):
    server: Server
    keeper: Keeper
    start: Plain  # the arguments of the journal, which say where the log continues
    replayed: int  # bytes of the log and of uploads after the checkpoint
    is_new: bool  # whether the folder was empty


def _opened(disk: Disk, make: Callable[[], Server], limits: dict[str, int]) -> _Opening:
    listing = contents(disk)
    if not listing.checkpoints:
        return _fresh(disk, listing, make, limits)
    recovery = recover(disk, listing, make)
    server = recovery.server
    server._running.follow_rate()
    start = _start(disk, listing, recovery)
    _make_durable(disk, start.pop("needed"), start.pop("unsure"))
    unused = _unused(listing, start)
    for name in unused:
        disk.rename(name, free_name(name))
    start["free"] = [*listing.free, *map(free_name, unused)]
    # The renames must be on the disk before the log continues. Otherwise an unused segment could come back.
    disk.sync_folder()
    _tidy(disk, listing, recovery)
    last_upload = max((*listing.uploads, *recovery.uploads, recovery.checkpoint.next_upload))
    uploads = Uploads(recovery.uploads, 1 + last_upload)
    kept = [sequence for sequence in listing.checkpoints if sequence not in recovery.damaged]
    keeper = Keeper(
        disk, server._parts, server._running, uploads, made=recovery.checkpoint.made,
        folder_id=recovery.checkpoint.folder_id, kept=kept, **limits,
    )  # fmt: skip
    engine.limit(server._engine, server._parts.settings)
    _log.info(
        "%s: recovered version %d: checkpoint %d, then %s", disk.path, server.version, recovery.checkpoint.sequence,
        ", ".join(f"{count} {name}" for name, count in recovery.replayed.items()) or "nothing",
    )  # fmt: skip
    return _Opening(server, keeper, start, recovery.reader.passed + recovery.streamed, False)


def _fresh(disk: Disk, listing: Contents, make: Callable[[], Server], limits: dict[str, int]) -> _Opening:
    server = make()
    for name in listing.segments.values():
        raise CheckpointError(f"{disk.path}: it has a log ({name}) and no checkpoint")
    for name in listing.leftovers:
        disk.remove(name)
    take_key(disk, server, None)
    folder_id = engine.new_incarnation()
    keeper = Keeper(
        disk, server._parts, server._running, Uploads({}, 1), made=made_of(server), folder_id=folder_id,
        kept=[], **limits,
    )  # fmt: skip
    keeper.write()  # the checkpoint from which the log continues
    start = {
        "folder_id": folder_id, "sequence": 0, "digest": bytes(32), "number": 1, "busy": [],
        "free": listing.free, "place": 0, "number_here": 0,
    }  # fmt: skip
    return _Opening(server, keeper, start, 0, True)


def _made(make: Callable[[], Server]) -> Server:
    server = make()
    if type(server) is not Server or server._log is not None:
        raise no_server(server)
    return server


def _start(disk: Disk, listing: Contents, recovery: Recovery) -> Plain:
    """Return the journal's arguments, which say where the log continues. Two further items are for `_make_durable`:
    ``needed``, the names of the segments that a recovery needs, and ``unsure``, the places of their last bytes."""
    oldest = next(sequence for sequence in listing.checkpoints if sequence not in recovery.damaged)
    reader = recovery.reader
    last, place, tail = reader.end
    segments = reader.segments[: last + 1]  # (number, first record)
    next_firsts = [first for _, first in segments[1:]] + [2**63]  # for each segment, the first record of the next one
    busy = [(listing.segments[number], first) for (number, first), end in zip(segments, next_firsts, strict=False)
            if end > oldest + 1]  # fmt: skip
    names = {name for name, _ in busy}
    # File name -> the begin and the end of the last bytes that the previous process wrote to the file.
    tails = {listing.segments[segments[-1][0]]: (tail, place)} if segments else {}
    if reader.mark is not None:
        segment, at = reader.mark
        tails[listing.segments[reader.segments[segment][0]]] = at, at + BLOCK
    return {
        "folder_id": recovery.checkpoint.folder_id, "sequence": reader.last, "digest": reader.digest,
        "number": 1 + max(listing.segments, default=0), "busy": busy, "place": place if segments else 0,
        "number_here": segments[-1][0] if segments else 0, "needed": names, "unsure": tails,
    }  # fmt: skip


def _unused(listing: Contents, start: Plain) -> list[str]:
    """Return the names of the segments that no recovery needs: those before and after the needed ones."""
    numbers = [number for number, name in listing.segments.items() if name in dict(start["busy"])]
    last = max(numbers, default=0)
    return [name for number, name in listing.segments.items() if not numbers or not numbers[0] <= number <= last]


def _make_durable(disk: Disk, names: set[str], tails: dict[str, tuple[int, int]]) -> None:
    """Sync files that a killed process has written, because their last bytes may not be on the disk. First write the
    bytes in ``tails`` (name -> begin, end) again, at the same place. After a failed sync, the system may count these
    bytes as written. Then a sync alone would not write them."""
    for name in names:
        at, end = tails.get(name, (0, 0))
        with disk.opened(name) as file:
            while at < end:
                at = disk.write(file, [disk.read(file, min(end - at, _CHUNK), at)], at)
            disk.sync(file)


def _tidy(disk: Disk, listing: Contents, recovery: Recovery) -> None:
    """Remove unfinished files, and rename damaged checkpoints. :meth:`Keeper.clear` removes further files."""
    for name in listing.leftovers:
        disk.remove(name)
    for sequence in recovery.damaged:
        name = checkpoint_name(sequence)
        disk.rename(name, name + ".damaged")
        _log.warning("%s: damaged; the one before it was taken, and the log", disk.path / name)
