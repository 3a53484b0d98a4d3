"""Arrays in an ``.npz`` file: ``x_train``, ``y_train``, ``x_test``, ``y_test``, and perhaps ``client_train``.

A copy beside a recipe reads data of your own: ``data = { name = "npz:load", file = "mine.npz", clients = 50 }``."""

from __future__ import annotations

import zipfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from shared import existing, standardised

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label

NEEDS = "an .npz file (data.file) with x_train, y_train, x_test and y_test"
KEYS = ("x_train", "y_train", "x_test", "y_test")
OWNERS = "client_train"  # optional: who holds each sample of x_train
Arrays = dict[str, np.ndarray]


def load(
    clients: int, seed: int, dir: str | None = None, file: str = "data.npz", pool: int = 1,
    channels: str | None = None, alpha: float = 0.3, min_samples: int = 2,
) -> FederatedData:  # fmt: skip
    """Return the file's samples, split over ``clients`` by label (see split_by_label), or as ``client_train`` says.

    ``file`` is in the folder ``dir``, or in a subfolder with the file's name without its ending. Inputs [N, ...] are
    standardised with one mean and deviation for all numbers. Images are [N, height, width] or [N, height, width,
    channels], or with ``channels`` "first" [N, channels, height, width]; without it the axis of at most 4 is that of
    the channels. ``pool`` x ``pool`` pixels are averaged. Labels are whole numbers from 0 up. DataError if the file has
    another form.
    """
    folder = existing("npz:load", dir, NEEDS)
    inside = f"{Path(file).stem}/{file}"
    path = next((folder / name for name in (file, inside) if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"the data folder {folder} has neither {file} nor {inside}")
    train, test, owners = _samples(path, path.stat().st_mtime_ns, pool, channels)
    if lowest := int(train.y.min()):
        raise DataError(f"{path}: y_train has labels {lowest} to {int(train.y.max())}: they must count from 0")
    classes = int(train.y.max()) + 1
    if owners is None:
        return split_by_label(train, test, classes, clients=clients, alpha=alpha, seed=seed, min_samples=min_samples)
    if (most := int(owners.max()) + 1) != clients:
        raise DataError(f"{path}: client_train names the clients 0..{most - 1}, and data.clients is {clients}")
    parts = [torch.from_numpy(np.flatnonzero(owners == client)) for client in range(clients)]
    return FederatedData([train.part(own) for own in parts], test, classes)


@lru_cache(maxsize=1)
def _samples(path: Path, changed: int, pool: int, channels: str | None) -> tuple[Samples, Samples, np.ndarray | None]:
    """Read the file once for all runs of a comparison, as long as its time ``changed`` stays the same."""
    arrays = read(path)
    arrays |= {key: _pooled(_channels_first(arrays[key], channels, path), pool, path) for key in ("x_train", "x_test")}
    return *standardised(path, arrays), arrays.get(OWNERS)


def read(path: Path) -> Arrays:
    """Return the file's checked arrays by KEYS. DataError names the file and the array."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a readable npz file: numpy.savez writes one, of {', '.join(KEYS)}")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in (*KEYS, OWNERS) if key in file}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not a readable npz file: {error}") from error
    if missing := [key for key in KEYS if key not in arrays]:
        raise DataError(f"{path} lacks {', '.join(missing)}: expected the arrays {', '.join(KEYS)}")
    return check(path, arrays)


def check(path: Path, arrays: Arrays) -> Arrays:
    """Return the arrays. DataError unless they are inputs and labels of one form."""
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim < 2 or y.shape != x.shape[:1] or len(y) == 0:
            raise DataError(f"{path}: x_{part} {x.shape} and y_{part} {y.shape}, expected [N, ...] and [N]")
        if x.dtype.kind not in "uif" or not np.isfinite(x).all():
            raise DataError(f"{path}: x_{part} must be finite numbers, got {x.dtype}")
        if y.dtype.kind not in "iu":
            raise DataError(f"{path}: y_{part} must be whole numbers, got {y.dtype}")
        most = int(arrays["y_train"].max())
        if y.min() < 0 or y.max() > most:
            raise DataError(f"{path}: y_{part} must be labels 0..{most}, those of y_train, got {y.min()} to {y.max()}")
    owners = arrays.get(OWNERS, arrays["y_train"])
    if owners.dtype.kind not in "iu" or owners.shape != arrays["y_train"].shape or owners.min() < 0:
        raise DataError(f"{path}: {OWNERS} must be the client, from 0 up, of each sample of x_train")
    shapes = arrays["x_train"].shape[1:], arrays["x_test"].shape[1:]
    if shapes[0] != shapes[1]:
        raise DataError(f"{path}: a sample of x_train is {shapes[0]}, one of x_test {shapes[1]}")
    return arrays


def _channels_first(x: np.ndarray, channels: str | None, path: Path) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    few = [name for name, size in (("first", x.shape[1]), ("last", x.shape[-1])) if size <= 4]
    if x.ndim == 4 and channels is None and len(few) != 1:
        raise DataError(f'{path}: samples of shape {x.shape[1:]}: set data.channels, "first" or "last"')
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and (channels or few[0]) == "last" else x


def _pooled(x: np.ndarray, pool: int, path: Path) -> np.ndarray:
    if pool == 1:
        return x
    if x.ndim != 4 or x.shape[2] % pool or x.shape[3] % pool:
        raise DataError(f"{path}: samples of shape {x.shape[1:]} cannot be pooled {pool} by {pool}")
    count, channels, height, width = x.shape
    blocks = x.reshape(count, channels, height // pool, pool, width // pool, pool)
    return blocks.mean(axis=(3, 5), dtype=np.result_type(x, np.float32))
