"""Restores a server from its folder: loads the newest readable checkpoint, and executes the later records of the log.

A record that is damaged or cannot be executed raises CheckpointError, because later records depend on this record. If
the system refuses to open or read a file, OSError is raised instead, because the file may be undamaged.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from fastagg import _checks
from fastagg._types import Native, Plain, State
from fastagg.durable import folder
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import Checkpoint, Contents, checkpoint_name, read_checkpoint, read_log, read_upload
from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.rules.privacy import NoiseKey
from fastagg.server import engine
from fastagg.server.server import Server
from fastagg.server.settings import FREE
from fastagg.storage.files import OtherFormat

KEY, _KEY_BYTES = "noise-key", 32  # the name and the bytes of the file with the key of a private server's noise


class Recovery(NamedTuple):
    """The result of :func:`recover`."""

    server: Server
    reader: Native  # the log's reader, at the end of the log
    checkpoint: Checkpoint
    replayed: dict[str, int]  # the number of executed operations of each kind
    uploads: dict[int, int]  # an upload's number -> the number of the record that refers to the upload
    streamed: int  # the bytes of the uploads to which executed records refer
    damaged: list[int]  # the numbers of damaged checkpoints


def recover(disk: Disk, listing: Contents, make: Callable[[], Server]) -> Recovery:
    """Return a server of ``make`` with the folder's state. The caller must still set the limits of its tasks.

    Raises:
        CheckpointError: the folder is damaged.
        OSError: the system refuses to read or write a file.
        ConfigError: ``make`` makes a server with other settings than the folder's.
    """
    checkpoint, damaged = newest(disk, listing)
    reader = read_log(disk, listing, checkpoint)
    server = made_for(disk, checkpoint, make)
    try:
        load_into(server, checkpoint.state)
    except (LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError, ValueError) as error:
        if isinstance(error, FastaggError):
            raise
        path = disk.path / checkpoint_name(checkpoint.sequence)
        raise CheckpointError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {error!s:.200}") from error
    replay = Replay(server, disk, listing)
    replay.all(reader)
    return Recovery(
        server, reader, checkpoint, replay.counts, {**checkpoint.uploads, **replay.uploads},
        replay.streamed, damaged,
    )  # fmt: skip


def newest(disk: Disk, listing: Contents) -> tuple[Checkpoint, list[int]]:
    """Return the newest readable checkpoint, and the numbers of newer, damaged checkpoints. A checkpoint that the disk
    cannot read (EIO) does not count as damaged. It is also left out, because an older checkpoint and the log give the
    same state."""
    wrong: list[str] = []
    damaged: list[int] = []
    for sequence in reversed(listing.checkpoints):
        try:
            return read_checkpoint(disk, sequence), damaged
        except OtherFormat:
            raise
        except CheckpointError as error:
            wrong.append(str(error))
            damaged.append(sequence)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            wrong.append(f"{disk.path / checkpoint_name(sequence)}: {error}")
    raise CheckpointError("; ".join(wrong) or f"{disk.path}: no checkpoint is in it")


def load_into(server: Server, state: State) -> None:
    """Load a checkpoint's state into a server, and remove the limits of tasks. Then the log can be executed."""
    if "lr" in state["config"]["optimizer"]:
        server.lr = state["config"]["optimizer"]["lr"]
    server.load_state_dict(state)
    # The server has the state's incarnation until a record of the log begins another incarnation.
    server._engine.begin_incarnation(int(state["version"]) + 1, int(state["lives"][-1][1]))
    # The log has a record of each task that ended, so limits must not end tasks during the replay.
    engine.limit(server._engine, None)


def made_for(disk: Disk, checkpoint: Checkpoint, make: Callable[[], Server]) -> Server:
    """Return a new server of ``make`` for a checkpoint's state. ConfigError: the server has other settings than those
    with which the folder was made."""
    server = make()
    check_made(disk, checkpoint.made, made_of(server))
    take_key(disk, server, checkpoint.state)
    return server


def made_of(server: Server) -> Plain:
    """Return the settings that must not change from one opening of a folder to the next, as JSON data."""
    config = {key: value for key, value in server.config().items() if key not in FREE}
    settings: Plain = json.loads(json.dumps(config, default=lambda other: type(other).__name__))
    return {**settings, "size": server.layout.size}


def check_made(disk: Disk, old: Plain, new: Plain) -> None:
    """Raise ConfigError if a folder's ``old`` settings differ from the ``new`` ones."""
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            raise ConfigError(
                f"{disk.path}: it was made with {key}={old.get(key)!r:.150}, but make() gives {new.get(key)!r:.150}; "
                "open it with its original settings (server.lr may be set afterwards), or use another folder"
            )


def no_server(value: object) -> ConfigError:
    """Return the error for a wrong ``make`` of :func:`fastagg.open`. ``value``: ``make`` itself, or its result."""
    do = "write fastagg.open(path, lambda: fastagg.FedBuff(model))"
    return ConfigError(_checks.wrong("make", "a function that returns a fastagg.Server", value, do))


class Replay:
    """Executes the operations in a log's records again, or only reads the records and their uploads.

    Attributes:
        server: the server that executes the operations. None: the records are only read.
        counts: the number of operations of each kind so far.
        uploads: an upload's number -> the number of the record that refers to the upload.
        streamed: the bytes of all uploads in ``uploads``.
        last: the number of the last record that was executed or read. 0: there was none.
    """

    def __init__(self, server: Any, disk: Disk, listing: Contents) -> None:
        self.server, self.disk, self.listing = server, disk, listing
        self.counts: dict[str, int] = {}
        self.uploads: dict[int, int] = {}
        self.streamed = self.last = 0

    def all(self, reader: Native) -> None:
        """Execute the operations of all further records of ``reader``.

        Raises:
            CheckpointError: a record is damaged, cannot be executed, or has another outcome than the recorded one.
            OSError: the system refuses to read or write a file.
        """
        while (record := reader.next()) is not None:
            self.one(record)

    def one(self, record: Native) -> None:
        """Execute the operation of one record. The errors are those of :meth:`all`."""
        operation = record.operation
        try:
            if operation is None:
                raise CheckpointError(record.wrong)
            update = None
            if operation.streamed is not None:
                self.uploads[operation.streamed[0]] = record.sequence
                self.streamed += operation.streamed[1]
                update = read_upload(self.disk, self.listing, operation.streamed)
            if self.server is not None:
                self.server._engine.execute(operation, record.body, update)
        except FastaggError as error:
            raise CheckpointError(
                f"{self.disk.path}: record {record.sequence} of the log cannot be executed: {error}"
            ) from error
        self.counts[operation.kind] = self.counts.get(operation.kind, 0) + 1
        self.last = record.sequence


# A private server draws noise with a key. When its log is executed again, the noise must be the same, so its folder has
# the key in a file of its own. Checkpoints and the log lack the key, because their readers could remove the noise.


def key_of(disk: Disk) -> NoiseKey | None:
    """Return a folder's key. None: the folder has none."""
    with named(disk.path / KEY):
        if KEY not in disk.names():
            return None
        key = NoiseKey(disk.read_of(KEY))
    if len(key) != _KEY_BYTES:
        raise CheckpointError(f"{disk.path / KEY}: expected {_KEY_BYTES} bytes, got {len(key)}")
    return key


def take_key(disk: Disk, server: Server, state: State | None) -> None:
    """Let a private server draw its noise with the folder's key. Other servers do not change. ``state``: the state of
    the folder's checkpoint. None: there is no checkpoint. Then a folder without a key gets the server's own key."""
    if getattr(server.direction, "privacy", None) is None:
        return
    key = key_of(disk)
    if key is not None:
        server._draw_with(key)
    elif state is None:
        with named(disk.path / KEY):
            disk.remove(KEY + folder.PARTIAL)
            disk.put(KEY + folder.PARTIAL, [server._parts.key])
            disk.rename(KEY + folder.PARTIAL, KEY)
            disk.sync_folder()
    else:
        raise CheckpointError(f"{disk.path / KEY}: it is missing: without it the log's steps cannot be made again")
    if state is not None and state["direction"].get("noise_key") != server._running.extension.state.native.key_id:
        raise CheckpointError(f"{disk.path / KEY}: it is not the key of this folder's noise")
