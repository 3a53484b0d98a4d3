"""MNIST from a folder the user has: ``mnist.npz``, the file Keras distributes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label, standardise

FILE = "mnist.npz"
KEYS = ("x_train", "y_train", "x_test", "y_test")


def load(folder: Path, clients: int, alpha: float, seed: int, min_samples: int = 2) -> FederatedData:
    """Return MNIST, inputs [1, 28, 28], split over ``clients`` by Dirichlet(alpha) on the labels.

    ``folder`` holds mnist.npz or a folder mnist/ with it; the file has uint8 images x_train [N, 28, 28] and
    x_test [M, 28, 28] and labels 0..9 y_train [N] and y_test [M]. DataError when it is missing or otherwise.
    """
    arrays = _read(_find(folder))
    x_train, x_test = standardise(arrays["x_train"][:, None], arrays["x_test"][:, None])
    return split_by_label(
        Samples(x_train, torch.from_numpy(arrays["y_train"].astype(np.int64))),
        Samples(x_test, torch.from_numpy(arrays["y_test"].astype(np.int64))),
        classes=10,
        clients=clients,
        alpha=alpha,
        min_samples=min_samples,
        seed=seed,
    )


def _find(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist: expected a folder with {FILE}")
    for path in (folder / FILE, folder / "mnist" / FILE):
        if path.is_file():
            return path
    raise DataError(f"the data folder {folder} has neither {FILE} nor mnist/{FILE}")


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file]
            if missing:
                raise DataError(f"{path} lacks {', '.join(missing)}: expected the arrays {', '.join(KEYS)}")
            arrays = {key: file[key] for key in KEYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable npz file: {error}") from error
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or len(y) == 0:
            raise DataError(f"{path}: x_{part} {x.shape} and y_{part} {y.shape}, expected [N, 28, 28] and [N]")
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() > 9:
            raise DataError(f"{path}: y_{part} must be labels 0..9, got {y.dtype} up to {y.max()}")
    return arrays
