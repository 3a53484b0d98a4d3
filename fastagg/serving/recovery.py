"""Restores a server from its folder: the newest undamaged checkpoint, then all records of the journal after it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastagg.errors import CheckpointError, ConfigError, FastaggError
from fastagg.layout import Parsed
from fastagg.serving import records
from fastagg.serving.dispatch import Receipt
from fastagg.serving.folder import Contents, Walk, checkpoint_name, contents
from fastagg.serving.leaves import facts_of
from fastagg.serving.records import Arrival
from fastagg.serving.server import Server
from fastagg.storage import raw, trees
from fastagg.storage.disk import Disk
from fastagg.storage.pieces import Pieces
from fastagg.storage.segments import Record

# These settings may change from one opening to the next. They limit waiting and do not affect the model.
_FREE = ("lease", "max_delay", "max_open_per_client", "max_clients", "max_waiting", "validate")

# By so much at most an encoded row's numbers are larger than those of its update: bf16 rounds up by less than 2^-7, and
# a scale is never below the smallest normal number (csrc/math/rows.h).
_ROUNDED, _LEAST = 1.01, 1e-35


@dataclass
class Recovered:
    """The result of a recovery."""

    server: Server
    walk: Walk
    checkpoint: int  # its sequence number
    oldest: int  # of the undamaged checkpoints; records up to this one are not needed
    made: dict[str, Any]  # the settings with which the folder was made
    uploads: dict[int, int]  # number -> the record that refers to it
    replayed: dict[str, int]  # the number of replayed records by kind
    damaged: list[Path]  # damaged checkpoints


def recover(disk: Disk, folder: Path, make: Callable[[], Server]) -> Recovered:
    """Restore the server. It has the limits and leases of ``make``; its journal continues after ``walk.last``.

    Raises:
        CheckpointError: the folder is damaged. ConfigError: ``make`` makes a server that differs from the folder's.
    """
    found = contents(disk, folder)
    state, sequence, manifest, damaged = _newest(disk, found)
    server = make()
    if type(server) is not Server:
        raise ConfigError(f"make: expected a function that returns a fastagg.Server, got {server!r:.200}")
    try:
        _check_made(folder, dict(manifest["made"]), made_of(server))
        uploads = {int(number): int(told) for number, told in manifest["uploads"].items()}
        _load(server, state)
    except (LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError, ValueError) as error:
        if isinstance(error, FastaggError):
            raise
        path = folder / checkpoint_name(sequence)
        raise CheckpointError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {error!s:.200}") from error
    limits = server.lease, server.max_delay, server.max_open_per_client, server.max_clients
    _lift_limits(server)
    del state
    walk = Walk(disk, found, sequence)
    player = Player(server, disk, found)
    for record in walk.records():
        player.play(record)
    _limit_again(server, limits)
    uploads |= player.uploads
    return Recovered(
        server, walk, sequence, found.checkpoints[0][0], manifest["made"], uploads, player.counts, damaged
    )  # fmt: skip


def _load(server: Server, state: dict[str, Any]) -> None:
    if "lr" in state["config"]["optimizer"]:
        server.lr = state["config"]["optimizer"]["lr"]
    server.load_state_dict(state)
    server._core.road.begin_life(int(state["version"]) + 1, int(state["lives"][-1][1]))


def _newest(disk: Disk, found: Contents) -> tuple[dict[str, Any], int, dict[str, Any], list[Path]]:
    """Return the newest undamaged checkpoint: its state, sequence number and manifest. Also return the damaged ones.
    Checkpoints that are newer are removed from ``found``.

    Raises:
        CheckpointError: every checkpoint is damaged, or there is none.
    """
    wrong: list[str] = []
    damaged: list[Path] = []
    while found.checkpoints:
        sequence, path = found.checkpoints[-1]
        try:
            manifest = trees.read_manifest(disk, path)
            return trees.read(disk, path, manifest), sequence, manifest, damaged
        except CheckpointError as error:
            wrong.append(str(error))
            damaged.append(path)
            found.checkpoints.pop()
    raise CheckpointError("; ".join(wrong))


def made_of(server: Server) -> dict[str, Any]:
    """Return the settings that a folder's server must keep, as in JSON."""
    config = {key: value for key, value in server.config().items() if key not in _FREE}
    if isinstance(config["direction"].get("cache"), dict):  # rows on tiers: where how many of them are is free
        tiers = "memory", "device"
        cache = {key: value for key, value in config["direction"]["cache"].items() if key not in tiers}
        config["direction"] = {**config["direction"], "cache": cache}
    found: dict[str, Any] = json.loads(json.dumps(config, default=lambda other: type(other).__name__))
    return {**found, "size": server.layout.size}


def _check_made(folder: Path, was: dict[str, Any], now: dict[str, Any]) -> None:
    for key in {**was, **now}:
        if was.get(key) != now.get(key):
            raise ConfigError(
                f"{folder}: it was made with {key}={was.get(key)!r:.150}, but make() gives {now.get(key)!r:.150}; "
                "open it with its original settings (server.lr may be set afterwards), or use another folder"
            )


def _lift_limits(server: Server) -> None:
    """Make sure that no task ends by itself while the journal is replayed. Its records tell which tasks ended."""
    most = 2**63 - 1
    server._core.ledger.limit(lease=math.inf, max_delay=most, open_per_client=most, clients=most)


def _limit_again(server: Server, limits: tuple[Any, ...]) -> None:
    """Restore the server's own limits. Every lease begins anew."""
    lease, delay, per_client, clients = (2**63 - 1 if limit is None else limit for limit in limits)
    server._core.ledger.limit(
        lease=math.inf if limits[0] is None else lease, max_delay=delay, open_per_client=per_client, clients=clients
    )
    server._core.ledger.renew()


class Player:
    """Replays records on a server."""

    def __init__(self, server: Server, disk: Disk, found: Contents) -> None:
        self.server, self.disk, self.found = server, disk, found
        self.uploads: dict[int, int] = {}
        self.counts: dict[str, int] = {}

    def play(self, record: Record) -> None:
        """Replay one record.

        Raises:
            CheckpointError: the record cannot be replayed, or gives another result.
        """
        try:
            self._play(record)
        except FastaggError as error:
            kind = records.NAMES.get(record.kind, str(record.kind))
            raise CheckpointError(
                f"the journal's record {record.sequence} ({kind}) cannot be replayed: {error}"
            ) from error
        name = records.NAMES[record.kind]
        self.counts[name] = self.counts.get(name, 0) + 1

    def _play(self, record: Record) -> None:
        server, body = self.server, record.body
        road, ledger = server._core.road, server._core.ledger
        if record.kind in records.ARRIVALS:
            self._arrive(record)
        elif record.kind == records.CLOSE_ROUND:
            server.close_round()
        elif record.kind in (records.DISPATCH, records.HAND_ON, records.FORGET, records.EXPIRE):
            client, version, _ = records.read_client(body)
            if record.kind == records.DISPATCH:
                sent = server.dispatch(client).version
                if sent != version:
                    raise CheckpointError(f"the server sent version {version} then, but sends version {sent} now")
            elif record.kind == records.HAND_ON:
                road.hand_on(client, version)
            elif record.kind == records.EXPIRE:
                ledger.expire_before(version)
            elif version < 0:
                ledger.forget(client)
            else:
                ledger.answer(client, version)
        elif record.kind == records.RATE:
            server.lr = records.read_rate(body)
        elif record.kind == records.LIFE:
            first, number = records.read_life(body)
            road.begin_life(first, number)
        else:
            raise CheckpointError("this version of fastagg does not know this kind of record")

    def _arrive(self, record: Record) -> None:
        server, is_row = self.server, record.kind == records.ROW
        found = records.read_arrival(record.body)
        if found.blob is not None:
            found.parsed = found.parsed._replace(parameters=self._upload(record, found))
        like = server._core.statistics.counters
        self._check_sizes(found, 0 if is_row else server.layout.size)
        if found.parsed.counters is not None:
            shaped = [one.view(mine.shape) for one, mine in zip(found.parsed.counters, like, strict=True)]
            found.parsed = Parsed(found.parsed.parameters, found.parsed.buffers, shaped)
        if is_row:
            receipt = self._take_row(found)
        elif found.updates is not None:
            receipt = self._take_sum(found, found.updates)
        else:
            receipt = server._received(found.client, found.version, found.parsed, found.share, found.control)
        if found.decided is None or server._judging.defers:
            return
        was, now = found.decided, records.decided(receipt)
        if not records.same(was, now):
            raise CheckpointError(f"the result was {was} then, but is {now} now: the rule or the model differs")

    def _take_sum(self, found: Arrival, updates: int) -> Receipt:
        """Let the server receive a leaf's sum."""
        facts = facts_of(updates, found.share, self.server)
        return self.server._received(found.client, found.version, found.parsed, 1.0, found.control, facts)

    def _take_row(self, found: Arrival) -> Receipt:
        """Let the server receive a row that is encoded already."""
        server, row = self.server, found.row
        road, judging = server._core.road, server._judging
        if judging.always:
            raise CheckpointError(
                f"it holds an encoded row, and this server is on {server.device}: open the folder with a server on the "
                "CPU, and call its checkpoint()"
            )
        holds = server._core.state.book.coded_row
        if holds is None or (row is not None and (row.format, len(row.data)) != holds):
            raise CheckpointError("it holds a row of another format or size than this server's")
        if found.decided is None:
            raise CheckpointError("it does not tell the outcome")
        weight, norm = found.decided[3:]
        if not 0 <= norm < math.inf:
            raise CheckpointError(f"the update's norm is {norm}, expected a number that is not negative")
        if row is not None and not row.largest() <= _ROUNDED * abs(weight) * norm + _LEAST:
            raise CheckpointError(f"the row's numbers are not finite, or larger than the update's norm, {norm}, allows")
        asks = judging.asks(found.parsed, None)
        more = judging.judge(found.client, found.version, found.parsed, found.share, None) if asks else None
        place = None if row is None else (row.format, row.data.ctypes.data, len(row.data))
        try:
            receipt: Receipt = road.receive_row(found.client, found.version, place, (found.share, norm), more)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return receipt

    def _check_sizes(self, found: Arrival, size: int) -> None:
        """Check what native code will not check again. ``size``: of the update itself."""
        layout, parsed = self.server.layout, found.parsed
        sizes = [parsed.parameters.size, *([] if parsed.buffers is None else [parsed.buffers.size])]
        if sizes != [size, layout.buffer_size][: len(sizes)]:
            raise CheckpointError(f"the update has {sizes} numbers, expected {size} and the model's statistics")
        if size and found.row is not None:
            raise CheckpointError("it holds an update and a row")
        like = [one.numel() for one in self.server._core.statistics.counters]
        if parsed.counters is not None and [one.numel() for one in parsed.counters] != like:
            raise CheckpointError("the update's counters are not the model's")
        if not (math.isfinite(found.share) and found.share > 0):
            raise CheckpointError(f"the update's weight is {found.share}, expected a number above 0")

    def _upload(self, record: Record, found: Arrival) -> Pieces:
        assert found.blob is not None
        number, nbytes, crc, code = found.blob
        path = self.found.uploads.get(number)
        if path is None:
            raise CheckpointError(f"upload {number} is missing")
        file = self.disk.open(path, write=False)
        try:
            view = self.disk.view(file)
        finally:
            self.disk.close(file)
        held = memoryview(view)[:nbytes]
        if len(held) != nbytes or raw.crc32c([held]) != crc:
            raise CheckpointError(f"{path}: the upload is damaged")
        self.uploads[number] = record.sequence
        return Pieces([records.tensor_at(held, 0, records.dtype_of(code), self.server.layout.size)])
