"""Reports the contents of a server's folder or file, whether every checksum is right, and what a recovery would do. It
writes nothing and takes no lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastagg import parts  # noqa: F401  it must come before fastagg.storage.tiered, which it imports itself
from fastagg.errors import CheckpointError
from fastagg.serving import checkpoint, records
from fastagg.serving.folder import Walk, contents
from fastagg.storage import raw, tiered, trees
from fastagg.storage.disk import Disk


def examine(path: Path) -> dict[str, Any]:
    """Examine the folder or file at ``path``.

    Returns:
        Plain data: ``kind`` (``folder`` or ``file``), ``healthy``, ``problems`` (descriptions of what is wrong), and
        the contents. For a folder also ``recovery``: what :func:`fastagg.open` would do.

    Raises:
        CheckpointError: nothing exists at ``path``.
    """
    if not path.exists():
        raise CheckpointError(f"{path}: there is nothing")
    return _folder(path) if path.is_dir() else _file(path)


def _file(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"path": str(path), "kind": "file", "bytes": path.stat().st_size, "problems": []}
    try:
        state = checkpoint.read(path)
        found |= _summary(state)
        found["problems"] += _rows(state)
    except CheckpointError as error:
        found["problems"].append(str(error))
    return {**found, "healthy": not found["problems"]}


def _folder(path: Path) -> dict[str, Any]:
    disk, problems = Disk(), []
    held = contents(disk, path)
    checkpoints: list[dict[str, Any]] = []
    whole: int | None = None
    known: dict[int, int] = {}
    for sequence, place in held.checkpoints:
        one: dict[str, Any] = {"name": place.name, "sequence": sequence, "healthy": True}
        try:
            manifest = trees.read_manifest(disk, place)
            state = trees.read(disk, place, manifest)
            one |= _summary(state)
            wrong = _rows(state)
            problems += wrong
            one["healthy"] = not wrong
            if not wrong:
                whole, known = sequence, {int(number): told for number, told in manifest["uploads"].items()}
        except CheckpointError as error:
            one["healthy"] = False
            problems.append(str(error))
        checkpoints.append(one)
    found: dict[str, Any] = {
        "path": str(path), "kind": "folder", "checkpoints": checkpoints,
        "segments": [{"name": one.path.name, "first": one.first, "bytes": one.size} for one in held.segments],
        "unused": [file.name for _, file in held.others], "leftovers": [file.name for file in held.leftovers],
        "uploads": len(held.uploads),
    }  # fmt: skip
    for older in [one["sequence"] for one in checkpoints if one["healthy"] and one["sequence"] != whole][:1]:
        _recovery(Walk(disk, held, older), older, known, problems)  # it is needed if the newer one is damaged
    if whole is None:
        problems.append(f"{path}: no whole checkpoint is in it")
    else:
        found["recovery"] = _recovery(Walk(disk, held, whole), whole, known, problems)
    return {**found, "healthy": not problems, "problems": problems}


def _recovery(walk: Walk, sequence: int, known: dict[int, int], problems: list[str]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    nbytes = 0
    try:
        for record in walk.records():
            name = records.NAMES.get(record.kind, str(record.kind))
            counts[name] = counts.get(name, 0) + 1
            nbytes += len(record.body)
            if record.kind in records.ARRIVALS:
                arrival = records.read_arrival(record.body)
                if arrival.blob is not None:
                    _check_upload(walk, arrival.blob)
    except (CheckpointError, OSError) as error:
        problems.append(str(error))
    return {
        "checkpoint": sequence, "replays": counts, "bytes": nbytes, "last": walk.last, "ends": walk.stopped,
        "would": "go on" if walk.stopped else "be refused",
    }  # fmt: skip


def _check_upload(walk: Walk, blob: tuple[int, int, int, int]) -> None:
    number, nbytes, crc, _ = blob
    path = walk.found.uploads.get(number)
    if path is None:
        raise CheckpointError(f"upload {number} is missing")
    file = walk.disk.open(path, write=False)
    try:
        view = memoryview(walk.disk.view(file))[:nbytes]
    finally:
        walk.disk.close(file)
    if len(view) != nbytes or raw.crc32c([view]) != crc:
        raise CheckpointError(f"{path}: the upload is damaged")


def _rows(state: dict[str, Any]) -> list[str]:
    """What is wrong with the rows on a disk that a checkpoint refers to, if it does."""
    cache = state["config"]["direction"].get("cache")
    if not isinstance(cache, dict):
        return []
    return tiered.problems(tiered.Tiered(**cache), state["flat"].numel(), state["direction"]["cache"])


def _summary(state: dict[str, Any]) -> dict[str, Any]:
    config = state["config"]
    names = {key: config[key]["name"] for key in ("direction", "optimizer", "staleness")}
    return {
        **names, "version": state["version"], "steps": state["steps"], "parameters": state["flat"].numel(),
        "clients": len(state["tasks"]["last_sent"]), "open_tasks": len(state["tasks"]["task_version"]),
    }  # fmt: skip
