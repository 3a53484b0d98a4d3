"""Writes and reads a server's checkpoint files in torch's file format. A file is written completely or not at all, and
is checked before its state is used. Server, loading.py, fastagg/durable and adapters call this module."""

from __future__ import annotations

import pickle
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks
from fastagg._types import Plain, State, Tree
from fastagg.errors import CheckpointError
from fastagg.model import Layout
from fastagg.storage import files

FORMAT = 1
# The bytes that the server and an adapter together allocate for each client when they load a state.
_BYTES_PER_CLIENT = 32
_ALWAYS = 64 << 20  # a state may claim this many bytes for its clients, even if its tensors are small


def mapped(value: Tree, change: Callable[[Any], Any]) -> Tree:
    """Return a copy of nested dicts, lists and tuples, in which ``change(value)`` replaces each other value."""
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(item, change) for item in value)
    return change(value)


def cloned(value: Tree) -> Tree:
    """Return a copy in which every tensor is cloned."""
    return mapped(value, lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf)


def on_device(value: Tree, device: torch.device) -> Tree:
    """Return a copy in which every tensor is on ``device``. A tensor that occurs twice is copied once."""
    moved: dict[object, Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        key = (leaf.data_ptr(), leaf.shape, leaf.dtype)
        if key not in moved:
            moved[key] = leaf.to(device)
        return moved[key]

    return mapped(value, move)


def plain(value: Tree) -> Tree:
    """Return settings with Python's numbers in place of NumPy's scalars. :func:`read` would refuse NumPy's scalars."""
    return mapped(value, lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf)


def open_tasks(state: State) -> list[tuple[int | str, int]]:
    """Return the client and the version of every task that was open when a server's state was written."""
    tasks = state["tasks"]
    clients = [client if isinstance(client, str) else int(client) for client in tasks["clients"]]
    return [(clients[place], int(version)) for place, version in zip(
        tasks["task_client"].tolist(), tasks["task_version"].tolist(), strict=True)]  # fmt: skip


def check(state: object, config: Plain, layout: Layout, moments: set[str] | None) -> None:
    """Check that ``state`` can be loaded into a server with this configuration and layout. Otherwise CheckpointError.

    Args:
        moments: the names of the optimizer's vectors. None: a user's own optimizer, whose vectors may have any names.
    """
    if not isinstance(state, dict) or "format" not in state:
        do = (
            "fastagg.load(path) makes a server from a file; a model's own state_dict is the argument of fastagg.FedBuff"
        )
        raise CheckpointError(_checks.wrong("state", "what another server's state_dict() returned", state, do))
    check_format(state)
    try:
        theirs = Layout.from_spec(state["layout"])
        names = {key: state["config"][key]["name"] for key in ("direction", "optimizer")}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
    if not layout.same_as(theirs):
        raise CheckpointError(
            f"the checkpoint is of another model: {theirs.size} parameters in {len(theirs.entries)} arrays, "
            f"this server has {layout.size} in {len(layout.entries)}"
        )
    if (theirs_dtype := state["config"].get("model_dtype")) != config["model_dtype"]:
        raise CheckpointError(
            f"the checkpoint has model_dtype={theirs_dtype!r}, this server model_dtype={config['model_dtype']!r}"
        )
    for key, name in names.items():
        if name != config[key]["name"]:
            raise CheckpointError(f"the checkpoint's {key} is {name}, this server's is {config[key]['name']}")
    theirs_moments = set(state.get("moments") or ())
    if moments is None:
        held = state.get("moments") or {}
        if not isinstance(held, dict) or not all(isinstance(tensor, Tensor) for tensor in held.values()):
            raise CheckpointError("the checkpoint is damaged: the optimizer's state holds more than tensors")
        return
    if theirs_moments ^ moments == {"units"}:
        raise CheckpointError(
            f"the checkpoint's moments are {_bits(theirs_moments)}, this server's are {_bits(moments)}"
        )
    if theirs_moments != moments:
        raise CheckpointError(f"the checkpoint is damaged: it has moments {sorted(theirs_moments)}")


def check_claims(state: State, config: Plain, layout: Layout) -> None:
    """Check the sizes that a state claims, before a server allocates memory of these sizes."""
    held: dict[int, int] = {}
    for name, tensor in _tensors("", state):
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        needed = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        if tensor.layout is not torch.strided or not tensor.is_contiguous() or needed > storage.nbytes():
            raise CheckpointError(f"the checkpoint is damaged: {name} claims more than its bytes")
    values = (state.get("buffers") or {}).get("values")
    for name, vector, size in (("flat", state.get("flat"), layout.size), ("buffers", values, layout.buffer_size)):
        if not isinstance(vector, Tensor) or vector.numel() != size:
            raise CheckpointError(f"the checkpoint is damaged: {name} are not the {size} numbers of its layout")
    direction = config["direction"]
    # A direction with rows also allocates memory for `size`: CA2FL has `min(size, num_clients)` spare rows, and a place
    # for each of a step's `size` updates.
    rows = direction.get("num_clients")
    claims = [config.get("num_clients"), rows, direction.get("size") if rows is not None else None]
    clients = max((count for count in claims if isinstance(count, int)), default=0)
    if clients * _BYTES_PER_CLIENT > max(_ALWAYS, 2 * sum(held.values())):
        raise CheckpointError(f"the checkpoint is damaged: it claims {clients} clients, but is too small for them")


def _tensors(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)


def _bits(moments: set[str]) -> str:
    return "8bit" if "units" in moments else "fp32"


def write(state: State, path: Path) -> None:
    """Write ``state`` to a new file in the same folder, sync the file to the disk, then rename it to ``path``.

    The new file has the permissions of an existing file at ``path``. If ``path`` is a symbolic link, the file to which
    it points is replaced."""
    path = path.resolve()
    if not path.parent.is_dir():
        raise CheckpointError(f"{path}: the checkpoint could not be written: create the folder {path.parent} first")
    mode = _mode(path)
    sums = torch.serialization.get_crc32_options()
    try:
        torch.serialization.set_crc32_options(True)  # `read` checks these checksums
        with files.whole(path, mode) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: the checkpoint could not be written: {_cause(error)}") from error
    finally:
        torch.serialization.set_crc32_options(sums)


def _mode(path: Path) -> int | None:
    """Return the permissions of the file at ``path``. None: there is no file, and a new file gets the system's."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if not stat.S_ISREG(mode):
        raise CheckpointError(
            f"{path}: the checkpoint could not be written: no regular file is there; give another path"
        )
    return stat.S_IMODE(mode)


def _cause(error: BaseException) -> BaseException:
    # Torch reports a file system's OSError as a RuntimeError about positions in the archive, and keeps it as context.
    said = error.__context__
    return said if isinstance(error, RuntimeError) and isinstance(said, OSError) else error


def _check_members(members: list[zipfile.ZipInfo], path: Path) -> None:
    """Refuse an archive with compressed or overlapping members, because their contents could exceed the file's size."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        packed = member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size
        if packed or member.header_offset < end:
            raise CheckpointError(f"{path}: the checkpoint is damaged: {member.filename!r} claims more than its bytes")
        end = member.header_offset + member.compress_size
    if end > path.stat().st_size:
        raise CheckpointError(f"{path}: the checkpoint is damaged: it ends too early")


_REFUSALS: dict[type[Exception], str] = {
    FileNotFoundError: "no such checkpoint; server.save({!r}) writes one",
    IsADirectoryError: "it is a folder, no file; fastagg.open({!r}, make) opens one",
    # torch's own message recommends to load the file without this check
    pickle.UnpicklingError: "refused: it contains other objects than tensors and plain data; expected a file that "
    "server.save(path) wrote",
    zipfile.BadZipFile: "not a whole checkpoint; expected a file that server.save(path) wrote",
}


def read(path: Path) -> State:
    """Read a checkpoint that :func:`write` wrote. Only tensors and plain data are loaded, never code."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait for a writer
            raise CheckpointError(f"{path}: no regular file is there; expected one that server.save(path) wrote")
        with zipfile.ZipFile(path) as file:
            _check_members(file.infolist(), path)
            damaged = file.testzip()  # torch does not check the checksums
        if damaged is not None:
            raise CheckpointError(f"{path}: the checkpoint is damaged: wrong checksum of {damaged!r}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can cause any kind of error
        known = next((text for kind, text in _REFUSALS.items() if isinstance(error, kind)), None)
        said = f"not a whole checkpoint: {type(error).__name__}: {error}" if known is None else known.format(str(path))
        raise CheckpointError(f"{path}: {said}") from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(
            f"{path}: not a fastagg checkpoint; expected a file that server.save(path) wrote. A model in it can start "
            "a new server: fastagg.FedBuff(torch.load(path))"
        )
    check_format(state, path)
    return state


def check_format(state: State, what: object = "the checkpoint") -> None:
    """Raise OtherFormat if this version of fastagg cannot read ``state``. ``what``: the file's name in the message."""
    if state["format"] != FORMAT:
        raise files.OtherFormat(what, state["format"], FORMAT)
