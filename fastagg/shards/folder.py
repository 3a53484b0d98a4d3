"""A sharded server's checkpoint: a folder with a file for every slice, and a manifest that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fastagg._types import Plain
from fastagg.errors import CheckpointError
from fastagg.model import Layout
from fastagg.server import checkpoint
from fastagg.shards import states

MANIFEST = "manifest.pt"
_KIND = "slices"
_FILES = "slice-*.pt"


class _Named(NamedTuple):
    begin: int
    end: int
    file: str


def file_name(name: str, rank: int) -> str:
    """Return the name of a slice's file. ``name`` is unique to the checkpoint, so no older file is replaced."""
    return f"slice-{name}-{rank}.pt"


def write_slice(state: states.State, path: Path, file: str) -> None:
    """Write the state of this rank's slice into the folder. The folder is created if it does not exist.

    Raises:
        CheckpointError: the slice could not be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint could not be written: {error}") from error
    checkpoint.write(state, path / file)


def write_manifest(path: Path, layout: Layout, bounds: Sequence[tuple[int, int]], files: Sequence[str]) -> None:
    """Turn the written files into the checkpoint, and remove all other files.

    Raises:
        CheckpointError: a file is missing, or the manifest could not be written.
    """
    for file in files:
        if not (path / file).is_file():
            raise CheckpointError(f"{path}: {file} is not there: all ranks must see one folder")
    slices = [[begin, end, file] for (begin, end), file in zip(bounds, files, strict=True)]
    whole = {**layout.spec(), "constants": []}  # which no slice has, and which may be distributed
    spec = {"format": checkpoint.FORMAT, "kind": _KIND, "layout": whole, "slices": slices}
    checkpoint.write(spec, path / MANIFEST)
    for old in path.glob(_FILES):
        if old.name not in files:  # from the last checkpoint, or from an unfinished one
            with suppress(OSError):
                old.unlink()


def read_slice(path: Path, layout: Layout, bounds: tuple[int, int], own: Layout, sliced: states.Sliced) -> states.State:
    """Return the state of the server of one slice. It is read from all files that contain a part of it.

    Args:
        layout: the whole model's.
        own: the slice's.
        sliced: what of the direction's state has numbers of elements.

    Raises:
        CheckpointError: the folder has no checkpoint of this model, or a damaged one.
    """
    manifest = checkpoint.read(path / MANIFEST)
    try:
        slices = _slices(manifest, path)
        if not layout.same_as(Layout.from_spec(manifest["layout"])):
            raise CheckpointError(f"{path}: the checkpoint is of another model")
        found = states.overlapping(slices, *bounds)
        parts = [states.Part(one.begin, one.end, checkpoint.read(path / one.file)) for one in found]
        for part in parts:
            theirs = Layout.from_spec(part.state["layout"])
            if part.state["config"]["origin"] != part.begin or theirs.size != part.end - part.begin:
                raise CheckpointError(f"{path}: the checkpoint is damaged: a slice is not where it says")
            checkpoint.check_claims(part.state, part.state["config"], theirs)
            if part.state["version"] != parts[0].state["version"]:
                raise CheckpointError(f"{path}: the checkpoint is damaged: its slices are of two versions")
        state = states.slice_of(parts, *bounds, sliced)
        return {**state, "config": {**state["config"], "origin": bounds[0]}, "layout": own.spec()}
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: the checkpoint is damaged: {type(error).__name__}: {error}") from error


def _slices(manifest: Plain, path: Path) -> list[_Named]:
    if manifest.get("kind") != _KIND:
        raise CheckpointError(f"{path}: not the checkpoint of a sharded server")
    found = [_Named(int(begin), int(end), str(file)) for begin, end, file in manifest["slices"]]
    if any(Path(one.file).name != one.file for one in found):
        raise CheckpointError(f"{path}: the checkpoint is damaged: a slice outside of its folder")
    return found
