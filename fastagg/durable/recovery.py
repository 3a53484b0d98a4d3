"""Restores a server from its folder: the newest undamaged checkpoint, then all operations of the log after it.

An operation that is lost costs that operation, never the folder: what can be read of it is followed, and the loss is
reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fastagg import _checks
from fastagg._types import Native, Plain, State
from fastagg.durable import trees
from fastagg.durable.disk import Disk
from fastagg.durable.folder import (
    Checkpoint,
    Contents,
    checkpoint_name,
    contents,
    read_checkpoint,
    read_log,
    read_upload,
)
from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.server import engine
from fastagg.server.server import Server
from fastagg.server.settings import FREE

_log = logging.getLogger("fastagg")


class Lost(NamedTuple):
    """Operations that could not be executed again."""

    first: int  # the number of the first of them
    records: int
    why: str

    def __str__(self) -> str:
        which = (
            f"record {self.first}" if self.records == 1 else f"records {self.first} to {self.first + self.records - 1}"
        )
        return f"{which}: lost: {self.why}"


class End(NamedTuple):
    """What the logs of all slices have (fastagg/shards/logs.py): records up to ``last``, but for the ``lost`` ones."""

    last: int
    lost: Sequence[tuple[int, int]] = ()  # the first one's number, and how many

    def has_lost(self, record: int) -> bool:
        return any(first <= record < first + count for first, count in self.lost)


class Recovered(NamedTuple):
    """The result of a recovery."""

    server: Server
    reader: Native  # of the log, at its end
    checkpoint: Checkpoint
    replayed: dict[str, int]  # the number of operations by kind
    uploads: dict[int, int]  # number -> the record that refers to it
    streamed: int  # the bytes of those that were executed
    lost: list[Lost]
    damaged: list[int]  # checkpoints that could not be read, by their numbers


def recover(
    disk: Disk, found: Contents, make: Callable[[Checkpoint], Server], *, check: bool = False, until: End | None = None
) -> Recovered:  # fmt: skip
    """Restore the server that ``make`` makes for a checkpoint, without limits of tasks. ``check``: look at all rows on
    a disk, not at a sample.

    Args:
        until: what is executed; None: all that can be. A slice's server executes what all slices have, or is refused.

    Raises:
        CheckpointError: the folder is damaged. ConfigError: ``make`` makes a server that differs from the folder's.
    """
    checkpoint, damaged = newest(disk, found)
    reader = read_log(disk, found, checkpoint)
    server = make(checkpoint)
    if isinstance(cache := checkpoint.state["direction"].get("cache"), dict):
        cache["check"] = check
    try:
        load_into(server, checkpoint.state)
    except (LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError, ValueError) as error:
        if isinstance(error, FastaggError):
            raise
        path = disk.path / checkpoint_name(checkpoint.sequence)
        raise CheckpointError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {error!s:.200}") from error
    replay = Replay(server, disk, found)
    replay.all(reader, until)
    own = [lost for lost in replay.lost if until is not None and not until.has_lost(lost.first)]
    if until is not None and (own or reader.last < until.last):  # it is beyond only where it passed over lost records
        why = "; ".join(map(str, own)) or f"its log ends with record {reader.last}, expected {until.last}"
        raise CheckpointError(f"{disk.path}: {why}")
    return Recovered(
        server, reader, checkpoint, replay.counts, {**checkpoint.uploads, **replay.uploads},
        replay.streamed, replay.lost, damaged,
    )  # fmt: skip


def newest(disk: Disk, found: Contents) -> tuple[Checkpoint, list[int]]:
    """Return the newest undamaged checkpoint, and the numbers of newer ones, which are damaged.

    Raises:
        CheckpointError: every checkpoint is damaged.
    """
    wrong: list[str] = []
    damaged: list[int] = []
    for sequence in reversed(found.checkpoints):
        try:
            return read_checkpoint(disk, sequence), damaged
        except CheckpointError as error:
            wrong.append(str(error))
            damaged.append(sequence)
    raise CheckpointError("; ".join(wrong) or f"{disk.path}: no checkpoint is in it")


def end_of(disk: Disk) -> End:
    """Return the last record of a folder's log, and which behind its newest whole checkpoint are damaged.

    Raises:
        CheckpointError: no checkpoint is whole.
    """
    found = contents(disk)
    manifest = None
    for sequence in reversed(found.checkpoints):
        with contextlib.suppress(CheckpointError):
            manifest = trees.read_manifest(disk, checkpoint_name(sequence))
            break
    if manifest is None:
        raise CheckpointError(f"{disk.path}: no whole checkpoint is in it")
    reader = read_log(disk, found, Checkpoint(sequence, manifest, {}))
    lost: list[tuple[int, int]] = []
    while True:
        if reader.next() is None:
            if (skipped := reader.skip_lost()) is None:
                return End(int(reader.last), lost)
            lost.append((int(skipped[0]), int(skipped[1])))


def load_into(server: Server, state: State) -> None:
    """Give a server a checkpoint's state, and no limits of tasks, so that the log can be executed."""
    if "lr" in state["config"]["optimizer"]:
        server.lr = state["config"]["optimizer"]["lr"]
    server.load_state_dict(state)
    # The log tells when another incarnation began. Until then it is the one of the state.
    if state.get("lives"):
        server._engine.begin_incarnation(int(state["version"]) + 1, int(state["lives"][-1][1]))
    # It tells which tasks ended, too.
    engine.limit(server._engine, None)


def made_of(server: Server) -> Plain:
    """Return the settings that a folder's server must keep, as in JSON."""
    config = {key: value for key, value in server.config().items() if key not in FREE}
    found: Plain = json.loads(json.dumps(config, default=lambda other: type(other).__name__))
    return {**found, "size": server.layout.size}


def check_made(disk: Disk, was: Plain, now: Plain) -> None:
    """Check that a folder's settings are still the same.

    Raises:
        ConfigError: one differs.
    """
    was, now = ({**made, "direction": _without_free(made.get("direction"))} for made in (was, now))
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            raise ConfigError(
                f"{disk.path}: it was made with {key}={was.get(key)!r:.150}, but make() gives {now.get(key)!r:.150}; "
                "open it with its original settings (server.lr may be set afterwards), or use another folder"
            )


def _without_free(direction: Any) -> Any:
    """Without how many rows are on which tier, which is free, and what older folders say of damaged ones."""
    cache = direction.get("cache") if isinstance(direction, dict) else None
    if not isinstance(cache, dict):
        return direction
    free = "memory", "device", "damaged"
    return {**direction, "cache": {key: value for key, value in cache.items() if key not in free}}


def no_server(given: object) -> ConfigError:
    """Return the error for a ``make`` that is no function that makes a server; ``given``: it, or what it returned."""
    do = "write fastagg.open(path, lambda: fastagg.FedBuff(model))"
    return ConfigError(_checks.wrong("make", "a function that returns a fastagg.Server", given, do))


class Replay:
    """Executes the operations of a log again.

    Attributes:
        counts: how many were executed, by kind.
        uploads: files that they refer to -> the record's number.
        streamed: the bytes of these files.
        lost: what could not be executed.
    """

    def __init__(self, server: Any, disk: Disk, found: Contents) -> None:
        self.server, self.disk, self.found = server, disk, found
        self.counts: dict[str, int] = {}
        self.uploads: dict[int, int] = {}
        self.streamed = 0
        self.lost: list[Lost] = []

    def all(self, reader: Native, until: End | None = None) -> None:
        """Execute all operations that a reader gives, or what all slices have.

        Raises:
            CheckpointError: an operation would have another outcome than it had: the server's rule is another one.
        """
        while until is None or reader.last < until.last:
            record = reader.next()
            if record is not None and until is not None and until.has_lost(record.sequence):
                self._pass_over(record.sequence, 1, "damaged in another slice", None, is_whole=False)
                continue
            if record is not None:
                self.one(record)
                continue
            skipped = reader.skip_lost()
            if skipped is None:
                return
            first, count, claimed = skipped
            # All slices pass over it alike, so what one of them could still read of it does not count.
            said = None if claimed is None or until is not None else claimed.operation
            self._pass_over(first, count, "damaged, and it was on the disk", said, is_whole=False)

    def one(self, record: Native) -> None:
        """Execute one."""
        operation = record.operation
        try:
            if operation is None:
                raise CheckpointError(record.wrong)
            update = None
            if operation.streamed is not None:
                self.uploads[operation.streamed[0]] = record.sequence
                self.streamed += operation.streamed[1]
                update = read_upload(self.disk, self.found, operation.streamed)
            self._execute(operation, record, update)
        except ConfigError as error:
            raise CheckpointError(f"{self.disk.path}: record {record.sequence} of the log: {error}") from error
        except FastaggError as error:
            self._pass_over(record.sequence, 1, str(error), operation, is_whole=True)
            return
        self.counts[operation.kind] = self.counts.get(operation.kind, 0) + 1

    def _execute(self, operation: Native, record: Native, update: Native) -> None:
        self.server._engine.execute(operation, record.body, update)

    def _pass_over(self, first: int, count: int, why: str, operation: Native, *, is_whole: bool) -> None:
        with contextlib.suppress(FastaggError):  # what a damaged record says may be wrong, too
            self.server._engine.pass_over(operation, is_whole)
        self.lost.append(Lost(first, count, why))
