"""Examines a server's folder or file: its contents, its checksums, and what :func:`fastagg.open` would do with it. This
module writes nothing and takes no lock. ``fastagg doctor`` calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastagg.durable import folder, trees
from fastagg.durable.disk import Disk, named
from fastagg.durable.folder import (
    LOCK,
    Checkpoint,
    Contents,
    checkpoint_name,
    contents,
    is_gone,
    read_checkpoint,
    read_log,
)
from fastagg.durable.log import SMALL
from fastagg.durable.recovery import Replay, key_of, load_into, made_for, take_key
from fastagg.errors import CheckpointError, FastaggError
from fastagg.server import checkpoint
from fastagg.server.server import Server
from fastagg.storage.files import OtherFormat


def examine(path: Path, *, replay: bool = False) -> dict[str, Any]:
    """Examine the folder or file at ``path``.

    Args:
        replay: whether to execute a folder's log on a server in memory, as an opening does. False: only read the log.

    Returns:
        Plain data: ``kind`` (``folder`` or ``file``), ``healthy`` (whether there is no problem), ``problems`` (their
        descriptions), and the contents. For a folder also ``recovery``: what :func:`fastagg.open` would do.
    """
    with named(path):
        if not path.exists():
            raise CheckpointError(
                f"{path}: there is nothing; expected a folder of fastagg.open(path, make), or a file of "
                "server.save(path)"
            )
        return _folder(path, replay) if path.is_dir() else _file(path)


def _file(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = {"path": str(path), "kind": "file", "bytes": path.stat().st_size, "problems": []}
    try:
        report |= _summary(checkpoint.read(path))
    except CheckpointError as error:
        report["problems"].append(str(error))
    return {**report, "healthy": not report["problems"]}


def _folder(path: Path, replay: bool) -> dict[str, Any]:
    try:
        disk = Disk(path)
    except OSError as error:
        return {"path": str(path), "kind": "folder", "healthy": False, "problems": [f"{path}: {error}"]}
    with disk:
        return examine_on(disk, replay=replay)


def examine_on(disk: Disk, *, replay: bool = False) -> dict[str, Any]:
    """Examine a folder on ``disk``, as :func:`examine` does."""
    listing, names = contents(disk), disk.names()
    if not (listing.checkpoints or listing.segments or LOCK in names):
        run_files = {"config.toml", "comparison.csv"}.intersection(names)
        kind = (
            "of a simulation (fastagg run or compare); a run's server is its checkpoint.pt"
            if run_files
            else "another folder"
        )
        raise CheckpointError(f"{disk.path}: no folder of fastagg.open(path, make): it is {kind}")
    problems: list[str] = []
    checkpoints, oldest, newest = _checkpoints(disk, listing, problems)
    report: dict[str, Any] = {
        "path": str(disk.path), "kind": "folder", "checkpoints": checkpoints, "leftovers": listing.leftovers,
        "uploads": len(listing.uploads), "segments": [], "unused": [],
    }  # fmt: skip
    if oldest is None or newest is None:
        problems.append(f"{disk.path}: no whole checkpoint is in it")
    else:
        report |= _log(disk, listing, oldest, newest, replay, problems)
        _check_room(disk, listing, newest, problems)
    return {**report, "healthy": not problems, "problems": problems}


def _checkpoints(
    disk: Disk, listing: Contents, problems: list[str]
) -> tuple[list[dict[str, Any]], Checkpoint | None, Checkpoint | None]:
    """Describe all checkpoints. Also return the oldest and the newest that can be read (or None)."""
    reports: list[dict[str, Any]] = []
    oldest: Checkpoint | None = None
    newest: Checkpoint | None = None
    for sequence in listing.checkpoints:
        report: dict[str, Any] = {"name": checkpoint_name(sequence), "sequence": sequence, "healthy": True}
        try:
            newest = read_checkpoint(disk, sequence)
            oldest = oldest or newest
            report |= _summary(newest.state)
        except OtherFormat:  # fastagg.open would refuse the folder
            raise
        except (CheckpointError, OSError) as error:
            if is_gone(disk, sequence):
                continue
            problems.append(str(error))
            report["healthy"] = False
        reports.append(report)
    return reports, oldest, newest


def _log(
    disk: Disk, listing: Contents, oldest: Checkpoint, newest: Checkpoint, replay: bool, problems: list[str]
) -> dict[str, Any]:
    """Return the log's part of the report: its files, and what an opening would do with the records after the newest
    checkpoint. Add problems to ``problems``."""
    walk, verdict, reader = Replay(None, disk, listing), "go on", None
    try:
        if replay:
            walk.server = server_of(disk, newest, "replay")
        reader = read_log(disk, listing, newest)
        walk.all(reader)
    except (FastaggError, OSError) as error:
        problems.append(str(error))
        verdict = "be refused"
    whole = reader
    if reader is not None and oldest is not newest:
        whole = _before(disk, listing, oldest, newest, problems) or reader
    chain = [] if whole is None else whole.segments
    sizes = {number: _size(disk, name) for number, name in listing.segments.items()}
    used = {number for number, _ in chain}
    return {
        "segments": [{"name": listing.segments[number], "first": first, "bytes": sizes[number]}
                     for number, first in chain],
        "unused": [name for number, name in listing.segments.items() if number not in used] + listing.free,
        "recovery": {
            "checkpoint": newest.sequence, "replays": walk.counts,
            "bytes": 0 if reader is None else reader.passed,
            "last": newest.sequence if reader is None else reader.last, "would": verdict, "replayed": replay,
            "version": None if walk.server is None else walk.server.version,
            "torn": _torn(disk, listing, reader),
        },
    }  # fmt: skip


def _check_room(disk: Disk, listing: Contents, newest: Checkpoint, problems: list[str]) -> None:
    """Add a problem to ``problems`` if the reserved files and the volume's free bytes together are too small for the
    next checkpoint and the next update."""
    update = 4 * newest.state["flat"].numel()
    needed = max(0, 2 * update - max((_size(disk, name) for name in listing.rooms), default=0))
    if update > SMALL and not listing.uploads:  # if there are uploads, one of them may have taken the spare file
        needed += max(0, update - _size(disk, folder.SPARE))
    for name, size in zip(
        (trees.TENSORS, trees.MANIFEST), trees.used(disk, checkpoint_name(newest.sequence)), strict=True
    ):
        needed += max(0, size - max((_size(disk, f"{reserve}/{name}") for reserve in listing.reserves), default=0))
    if needed > disk.free():
        problems.append(
            f"{disk.path}: the volume has no room for the next checkpoint: free {needed - disk.free():,} bytes of it"
        )


def _before(disk: Disk, listing: Contents, oldest: Checkpoint, newest: Checkpoint, problems: list[str]) -> Any:
    """Read the log from the oldest checkpoint on, and add problems before the newest checkpoint to ``problems``. An
    opening reads this part of the log only if newer checkpoints are damaged. Return the reader, or None."""
    only = f"only {checkpoint_name(oldest.sequence)} needs it"
    reader, walk = None, Replay(None, disk, listing)
    try:
        reader = read_log(disk, listing, oldest)
        walk.all(reader)
    except (FastaggError, OSError) as error:
        if walk.last < newest.sequence:  # `_log` reports problems after the newest checkpoint
            problems.append(f"{error} ({only})")
        return reader
    return reader


def _torn(disk: Disk, listing: Contents, reader: Any) -> str | None:
    """Return the file and byte of an incomplete record at the log's end, or None. A crash may leave such a record. The
    server has not acknowledged its change."""
    if reader is None or not reader.is_torn:
        return None
    segment, place, _ = reader.end
    return f"{listing.segments[reader.segments[segment][0]]}, byte {place}"


def server_of(disk: Disk, newest: Checkpoint, what: str, make: Callable[[], Server] | None = None) -> Server:
    """Return a server without a folder, with the state of ``newest``. ``what``: the caller's name for the message.

    Args:
        make: a function that makes the server. Needed only for FedEcho, or if a part is not registered.
    """
    from fastagg.server.loading import server_from

    if make is not None:
        server = made_for(disk, newest, make)
        load_into(server, newest.state)
        return server
    config = newest.state["config"]
    if "distill" in config["direction"]:
        raise CheckpointError(f"{what}: FedEcho needs its unlabelled data; fastagg.open(path, make) replays it")
    server = server_from(newest.state, device="cpu", key=key_of(disk))
    take_key(disk, server, newest.state)
    load_into(server, newest.state)
    return server


def _size(disk: Disk, name: str) -> int:
    try:
        return disk.size_of(name)
    except OSError:
        return 0


def _summary(state: dict[str, Any]) -> dict[str, Any]:
    config = state["config"]
    names = {key: config[key]["name"] for key in ("direction", "optimizer", "staleness")}
    return {
        **names, "version": state["version"], "steps": state["steps"], "parameters": state["flat"].numel(),
        "clients": len(state["tasks"]["last_sent"]), "open_tasks": len(state["tasks"]["task_version"]),
    }  # fmt: skip
