"""Your own data as arrays: an ``.npz`` file with ``x_train``, ``y_train``, ``x_test``, ``y_test``, and perhaps
``client_train``."""

from __future__ import annotations

import zipfile
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label, standardise
from fastagg.sim.data.files import places

KEYS = ("x_train", "y_train", "x_test", "y_test")
OWNERS = "client_train"  # optional: who holds each sample of x_train
Arrays = dict[str, np.ndarray]


def load(
    folder: Path, clients: int, alpha: float, seed: int, min_samples: int = 2, file: str = "data.npz", pool: int = 1
) -> FederatedData:
    """Return the file's samples, split over ``clients`` by Dirichlet(alpha) on the labels, or as ``client_train`` says.

    ``file`` is in ``folder``, or in a subfolder with the file's name without its ending. Inputs [N, ...] are
    standardised with one mean and deviation for all numbers. Images are [N, height, width] or [N, height, width,
    channels]; ``pool`` x ``pool`` of their pixels are averaged. Labels are whole numbers from 0 up. DataError if the
    file has another form.
    """
    path = find(folder, file)
    train, test, owners = _samples(path, path.stat().st_mtime_ns, pool)
    if owners is None:
        return split(train, test, clients, alpha, seed, min_samples)
    if (most := int(owners.max()) + 1) != clients:
        raise DataError(f"{path}: client_train names the clients 0..{most - 1}, and data.clients is {clients}")
    parts = [torch.from_numpy(np.flatnonzero(owners == client)) for client in range(clients)]
    return FederatedData([Samples(train.x[own], train.y[own]) for own in parts], test, int(train.y.max()) + 1)


@lru_cache(maxsize=1)
def _samples(path: Path, changed: int, pool: int) -> tuple[Samples, Samples, np.ndarray | None]:
    """Read the file once for all runs of a comparison, as long as its time ``changed`` stays the same."""
    arrays = read(path)
    x_train, x_test = (_pooled(_channels_first(arrays[key]), pool, path) for key in ("x_train", "x_test"))
    try:
        return *samples(x_train, x_test, arrays["y_train"], arrays["y_test"]), arrays.get(OWNERS)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def samples(x_train: np.ndarray, x_test: np.ndarray, *labels: np.ndarray) -> tuple[Samples, Samples]:
    """Return training and test set, the inputs standardised."""
    inputs = standardise(x_train, x_test)
    train, test = (Samples(x, torch.from_numpy(y.astype(np.int64))) for x, y in zip(inputs, labels, strict=True))
    return train, test


def split(train: Samples, test: Samples, clients: int, alpha: float, seed: int, min_samples: int) -> FederatedData:
    """Split the training set by label. It determines the number of classes."""
    return split_by_label(train, test, int(train.y.max()) + 1, clients, alpha, min_samples, seed)


def find(folder: Path, file: str) -> Path:
    """Return where ``file`` is. DataError if it is not there."""
    for place in places(folder, Path(file).stem):
        if (place / file).is_file():
            return place / file
    raise DataError(f"the data folder {folder} has neither {file} nor {Path(file).stem}/{file}")


def read(path: Path) -> Arrays:
    """Return the file's checked arrays by KEYS. DataError names the file and the array."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a readable npz file: numpy.savez writes one, of {', '.join(KEYS)}")
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := [key for key in KEYS if key not in file]:
                raise DataError(f"{path} lacks {', '.join(missing)}: expected the arrays {', '.join(KEYS)}")
            arrays = {key: file[key] for key in (*KEYS, OWNERS) if key in file}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable npz file: {error}") from error
    check(path, arrays)
    return arrays


def check(path: Path, arrays: Arrays) -> None:
    """Raise DataError unless the arrays are inputs and labels of one form."""
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


def _channels_first(x: np.ndarray) -> np.ndarray:
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[-1] in (1, 3, 4) else x


def _pooled(x: np.ndarray, pool: int, path: Path) -> np.ndarray:
    if pool == 1:
        return x
    if x.ndim != 4 or x.shape[2] % pool or x.shape[3] % pool:
        raise DataError(f"{path}: samples of shape {x.shape[1:]} cannot be pooled {pool} by {pool}")
    count, channels, height, width = x.shape
    blocks = x.reshape(count, channels, height // pool, pool, width // pool, pool)
    return blocks.mean(axis=(3, 5), dtype=np.float32)
