"""A server of a folder: fresh, or as it was when its process ended."""

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

_log = logging.getLogger("fastagg")


def open(
    path: str | os.PathLike[str],
    make: Callable[[], Server],
    durability: Durability = "arrival",
    *,
    keep: int = 2,
    checkpoint_every: int = EVERY,
) -> DurableServer:
    """The server of the folder ``path``: the one that ``make`` makes or, if the folder has one, that one as it was: its
    last checkpoint, and all that its journal says happened since, done again to the bit.

    Args:
        path: a folder, or where one is to be.
        make: makes the server, with the settings that the folder was begun with. Limits (``lease``, ``max_...``) may
            change from one opening to the next.
        durability: ``arrival``: ``receive`` returns when its update is on the disk. ``step``: when it made a step, and
            so was everything before it. ``none``: nobody waits; a crash loses what the last fraction of a second
            brought. ``receipt.durable`` says whether one is on the disk, ``server.flush()`` waits.
        keep: checkpoints that stay; the journal goes back to the oldest of them.
        checkpoint_every: bytes of journal after which a checkpoint is written in the background.

    Raises:
        Busy: another process, or another server of this one, has the folder open.
        CheckpointError: it is damaged, or could not be written. Nothing was changed.
        ConfigError: a setting is refused, or ``make`` makes another server than the folder's.
    """
    return open_on(Disk(), Path(path), make, durability, keep=keep, checkpoint_every=checkpoint_every)


def open_on(
    disk: Disk, folder: Path, make: Callable[[], Server], durability: Durability, *, keep: int = 2,
    checkpoint_every: int = EVERY, segment: int = SEGMENT,
) -> DurableServer:  # fmt: skip
    """:func:`open` of a folder on ``disk``, with segments of so many bytes."""
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
        server.__class__ = DurableServer  # whatever refers to it goes on referring to it
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
    for one in past.walk.needed:  # a killed process's last writes may be in memory alone
        file = disk.open(one.path)
        try:
            disk.sync(file)
        finally:
            disk.close(file)
    uploads = _tidy(disk, found, past)
    after = [one.first for one in found.segments[1:]] + [2**63]  # where the next segment begins
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
    found = contents(disk, folder)
    for path in (*found.leftovers, *(one.path for one in found.segments), *(path for _, path in found.others)):
        if not path.name.endswith(PARTIAL):
            raise CheckpointError(f"{folder}: it has a journal ({path.name}) and no checkpoint")
        disk.remove(path)
    disk.sync_folder(folder.parent)
    keeper = Keeper(disk, folder, lock, made_of(server), [], {}, 1, keep, every)
    keeper.write(server)  # what the journal goes on from
    journal = Journal(disk, folder, 0, 1, [], [], segment)
    _limit(journal, server)
    return server, keeper, journal


def _limit(journal: Journal, server: Server) -> None:
    if server.max_waiting is not None:
        journal.native.max_waiting = server.max_waiting


def _tidy(disk: Disk, found: Contents, past: Recovered) -> dict[int, int]:
    """Remove what nobody will read. The uploads that stay, with the records that tell of them."""
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
        keeper.close(5.0)  # nobody asked to wait
