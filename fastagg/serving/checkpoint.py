"""Checkpoints: torch's file format, written whole or not at all, checked before anything is believed."""

from __future__ import annotations

import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import CheckpointError
from fastagg.layout import Layout

FORMAT = 3


def cloned(value: Any) -> Any:
    """A copy of nested dicts, lists and tuples with every tensor cloned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: cloned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(cloned(item) for item in value)
    return value


def on_device(value: Any, device: torch.device, _moved: dict[Any, Tensor] | None = None) -> Any:
    """Nested dicts, lists and tuples with every tensor on ``device``; tensors that were one are still one."""
    moved = {} if _moved is None else _moved
    if isinstance(value, Tensor):
        key = (value.data_ptr(), value.shape, value.dtype)
        if key not in moved:
            moved[key] = value.to(device)
        return moved[key]
    if isinstance(value, dict):
        return {key: on_device(item, device, moved) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(on_device(item, device, moved) for item in value)
    return value


def plain(value: Any) -> Any:
    """Settings as a checkpoint may hold them: NumPy's scalars, which no loader trusts, become Python's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


def open_tasks(state: dict[str, Any]) -> list[tuple[int | str, int]]:
    """Client and version of every task that was out when a server's state was written."""
    tasks = state["tasks"]
    clients = [client if isinstance(client, str) else int(client) for client in tasks["clients"]]
    return [(clients[place], int(version)) for place, version in zip(
        tasks["task_client"].tolist(), tasks["task_version"].tolist(), strict=True)]  # fmt: skip


def check(state: Any, config: dict[str, Any], layout: Layout, moments: set[str]) -> None:
    """Whether ``state`` can be loaded into a server of this configuration and layout.

    Raises:
        CheckpointError: it cannot, and why.
    """
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError("not a fastagg checkpoint")
    if state["format"] != FORMAT:
        raise CheckpointError(f"checkpoint format {state['format']!r}; this version reads format {FORMAT}")
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
    begins = state["config"].get("origin", 0)
    if begins != config["origin"]:  # the same number of parameters of another part of the model
        raise CheckpointError(f"the checkpoint's origin is {begins}, this server's is {config['origin']}")
    for key, name in names.items():
        if name != config[key]["name"]:
            raise CheckpointError(f"the checkpoint's {key} is {name}, this server's is {config[key]['name']}")
    theirs_moments = set(state.get("moments") or ())
    if theirs_moments ^ moments == {"units"}:
        raise CheckpointError(
            f"the checkpoint's moments are {_bits(theirs_moments)}, this server's are {_bits(moments)}"
        )
    if theirs_moments != moments:
        raise CheckpointError(f"the checkpoint is damaged: it has moments {sorted(theirs_moments)}")


def _bits(moments: set[str]) -> str:
    return "8bit" if "units" in moments else "fp32"


def write(state: dict[str, Any], path: Path) -> None:
    """Write ``state`` beside ``path``, flush it to the disk, then take the name over in one step.

    Raises:
        CheckpointError: the file system refused; what was at ``path`` is as it was.
    """
    temporary = None
    sums = torch.serialization.get_crc32_options()
    try:
        torch.serialization.set_crc32_options(True)  # `read` checks them
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".partial", delete=False) as f:
            temporary = f.name
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
        temporary = None
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: the checkpoint could not be written: {_cause(error)}") from error
    finally:
        torch.serialization.set_crc32_options(sums)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _cause(error: BaseException) -> BaseException:
    # What the file system says reaches us, through torch, as an error about positions in its archive.
    said = error.__context__
    return said if isinstance(error, RuntimeError) and isinstance(said, OSError) else error


def read(path: Path) -> dict[str, Any]:
    """What :func:`write` wrote. Only tensors and plain data are ever loaded, no code.

    Raises:
        CheckpointError: no such file, or not a whole checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()  # torch does not look at the checksums
        if damaged is not None:
            raise CheckpointError(f"{path}: the checkpoint is damaged: wrong checksum of {damaged!r}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such checkpoint") from error
    except pickle.UnpicklingError as error:  # torch's own text advises to load it regardless
        raise CheckpointError(f"{path}: refused: it holds something else than tensors and plain data") from error
    except Exception as error:  # there is no end to what a damaged file can make its readers raise
        raise CheckpointError(f"{path}: not a whole checkpoint: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a fastagg checkpoint of format {FORMAT}")
    return state
