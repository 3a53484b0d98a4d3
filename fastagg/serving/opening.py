"""Opens a server's folder: with a new server, or with the state at the end of the previous process."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from fastagg import _checks
from fastagg.errors import Busy, CheckpointError, ConfigError
from fastagg.parts.names import words
from fastagg.serving import records
from fastagg.serving.core import new_life
from fastagg.serving.durable import Durability, DurableServer
from fastagg.serving.folder import LOCK, PARTIAL, Contents, contents
from fastagg.serving.journal import SEGMENT, Journal
from fastagg.serving.recovery import Recovered, made_of, recover
from fastagg.serving.server import Server
from fastagg.serving.snapshots import EVERY, Keeper
from fastagg.storage.disk import Disk
from fastagg.storage.tiered import Tiered

_log = logging.getLogger("fastagg")


def open(
    path: str | os.PathLike[str],
    make: Callable[[], Server],
    durability: Durability = "arrival",
    *,
    keep: int = 2,
    checkpoint_every: int = EVERY,
) -> DurableServer:
    """Return the server of the folder ``path``. If the folder is empty, it is the server that ``make`` makes. Otherwise
    the server is restored bit for bit: from its last checkpoint and all later records of its journal.

    Args:
        path: the folder. It is created if it does not exist.
        make: a function that makes the server, with the settings with which the folder was made. Limits (``lease``,
            ``max_...``) may change from one opening to the next.
        durability: ``arrival``: ``receive`` returns when its update is on the disk. ``step``: only an update that made
            a step waits for the disk, with all updates before it. ``none``: nobody waits, and a crash loses the updates
            of the last fraction of a second. ``receipt.durable`` tells whether an update is on the disk, and
            ``server.flush()`` waits for it.
        keep: how many checkpoints are kept. The journal goes back to the oldest of them.
        checkpoint_every: after so many bytes of journal a checkpoint is written in the background.

    Raises:
        Busy: another process, or another server of this process, has the folder open.
        CheckpointError: the folder is damaged, or could not be written. Nothing has changed.
        ConfigError: a setting is refused, or ``make`` makes a server that differs from the folder's.
    """
    return open_on(Disk(), Path(path), make, durability, keep=keep, checkpoint_every=checkpoint_every)


def open_on(
    disk: Disk, folder: Path, make: Callable[[], Server], durability: Durability, *, keep: int = 2,
    checkpoint_every: int = EVERY, segment: int = SEGMENT,
) -> DurableServer:  # fmt: skip
    """:func:`open` for a folder on ``disk``, with segments of the given number of bytes."""
    _checks.one_of("durability", durability, words(Durability))
    _checks.whole("keep", keep, least=1)
    _checks.whole("checkpoint_every", checkpoint_every, least=1)
    if not callable(make):
        raise ConfigError(f"make: expected a function that returns a fastagg.Server, got {make!r:.200}")
    try:
        disk.make_folder(folder)
        lock = disk.lock(folder / LOCK)
    except OSError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    if lock is None:
        raise Busy(f"{folder}: it is open already, here or in another process")
    keeper = None
    try:
        server, keeper, journal = _opened(disk, folder, make, (lock, keep, checkpoint_every, segment))
        keeper.journal = journal
        server.__class__ = DurableServer  # all references to it stay valid
        assert isinstance(server, DurableServer)
        server._begin(folder, durability, journal, keeper)
    except OSError as error:
        _give_back(disk, keeper, lock)
        raise CheckpointError(f"{folder}: {error}") from error
    except BaseException:
        _give_back(disk, keeper, lock)
        raise
    weakref.finalize(server, _abandoned, os.getpid(), keeper)
    return server


def _opened(
    disk: Disk, folder: Path, make: Callable[[], Server], told: tuple[int, int, int, int]
) -> tuple[Server, Keeper, Journal]:
    lock, keep, every, segment = told
    found = contents(disk, folder)
    if not found.checkpoints:
        return _fresh(disk, folder, make, told)
    past = recover(disk, folder, make)
    server, found = past.server, past.walk.found
    _check_rows(server, keep)
    for one in past.walk.needed:  # the last writes of a killed process may be in memory only
        file = disk.open(one.path)
        try:
            disk.sync(file)
        finally:
            disk.close(file)
    uploads = _tidy(disk, found, past)
    after = [one.first for one in found.segments[1:]] + [2**63]  # the first record of the next segment
    busy = [one for one, end in zip(found.segments, after, strict=False) if end > past.oldest + 1]
    free = [one.path for one in found.segments if one not in busy] + [path for _, path in found.others]
    number = 1 + max([one.number for one in found.segments] + [number for number, _ in found.others], default=0)
    keeper = Keeper(
        disk, folder, lock, past.made, [sequence for sequence, _ in found.checkpoints], uploads,
        1 + max(found.uploads, default=0), keep, every,
    )  # fmt: skip
    journal = Journal(disk, folder, past.walk.last, number, free, busy, segment)
    _limit(journal, server)
    road, first, life = server._core.road, server.version + 1, new_life()
    road.begin_life(first, life)
    journal.append(records.LIFE, records.life(first, life))
    _log.info(
        "%s: recovered version %d: checkpoint %d, then %s", folder, server.version, past.checkpoint, past.replayed
    )
    return server, keeper, journal


def _fresh(
    disk: Disk, folder: Path, make: Callable[[], Server], told: tuple[int, int, int, int]
) -> tuple[Server, Keeper, Journal]:
    lock, keep, every, segment = told
    server = make()
    if type(server) is not Server:
        raise ConfigError(f"make: expected a function that returns a fastagg.Server, got {server!r:.200}")
    _check_rows(server, keep)
    found = contents(disk, folder)
    for path in (*found.leftovers, *(one.path for one in found.segments), *(path for _, path in found.others)):
        if not path.name.endswith(PARTIAL):
            raise CheckpointError(f"{folder}: it has a journal ({path.name}) and no checkpoint")
        disk.remove(path)
    disk.sync_folder(folder.parent)
    keeper = Keeper(disk, folder, lock, made_of(server), [], {}, 1, keep, every)
    keeper.write(server)  # the checkpoint from which the journal continues
    journal = Journal(disk, folder, 0, 1, [], [], segment)
    _limit(journal, server)
    return server, keeper, journal


def _check_rows(server: Server, keep: int) -> None:
    cache = getattr(server.direction, "cache", None)
    if isinstance(cache, Tiered) and cache.keep < keep:
        raise ConfigError(
            f"keep: {keep} checkpoints, and Tiered(keep={cache.keep}) has the rows of fewer: raise that one"
        )


def _limit(journal: Journal, server: Server) -> None:
    if server.max_waiting is not None:
        journal.native.max_waiting = server.max_waiting


def _tidy(disk: Disk, found: Contents, past: Recovered) -> dict[int, int]:
    """Remove files that are no longer needed. Return the remaining uploads with the records that refer to them."""
    for path in found.leftovers:
        disk.remove(path)
    for path in past.damaged:
        disk.rename(path, path.with_name(path.name + ".damaged"))
        _log.warning("%s: damaged; the one before it was taken, and the journal", path)
    for number, path in found.uploads.items():
        if number not in past.uploads:
            disk.remove(path)
    return past.uploads


def _give_back(disk: Disk, keeper: Keeper | None, lock: int) -> None:
    if keeper is None:
        disk.close(lock)
    else:
        keeper.close()


def _abandoned(process: int, keeper: Keeper) -> None:
    if os.getpid() == process:  # a forked child has neither its thread nor its lock
        keeper.close(5.0)  # at exit, nobody asked to wait longer
