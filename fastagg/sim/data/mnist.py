"""MNIST from a folder: ``mnist.npz``, the file that Keras distributes, or the four original IDX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastagg.errors import DataError
from fastagg.sim.data import idx, npz
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import places

FILE = "mnist.npz"
IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def load(folder: Path, clients: int, alpha: float, seed: int, min_samples: int = 2) -> FederatedData:
    """Return MNIST, inputs [1, 28, 28], split over ``clients`` by Dirichlet(alpha) on the labels.

    ``folder`` has mnist.npz, or a folder mnist/ with it. The file has uint8 images x_train [N, 28, 28] and x_test [M,
    28, 28], and labels 0..9 y_train [N] and y_test [M]. Or ``folder`` has the IDX files, gzipped or not. DataError if
    files are missing or have another form.
    """
    path, arrays = _arrays(folder)
    _check(path, arrays)
    x_train, x_test = arrays["x_train"][:, None], arrays["x_test"][:, None]
    train, test = npz.samples(x_train, x_test, arrays["y_train"], arrays["y_test"])
    return npz.split(train, test, clients, alpha, seed, min_samples)


def _arrays(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Find either kind of files. Return where they are and their arrays by npz.KEYS."""
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist: expected a folder with {FILE} or IDX files")
    for place in places(folder, "mnist", "MNIST/raw"):
        if (place / FILE).is_file():
            return place / FILE, npz.read(place / FILE)
        if idx.find(place, IDX["x_train"]) is not None:
            return place, {key: idx.read(_one(place, name)) for key, name in IDX.items()}
    raise DataError(f"the data folder {folder} has neither {FILE} nor mnist/{FILE} nor the IDX file {IDX['x_train']}")


def _one(place: Path, name: str) -> Path:
    path = idx.find(place, name)
    if path is None:
        raise DataError(f"{place} lacks the IDX file {name}")
    return path


def _check(path: Path, arrays: dict[str, np.ndarray]) -> None:
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.shape[1:] != (28, 28) or y.shape != x.shape[:1] or len(y) == 0:
            raise DataError(f"{path}: x_{part} {x.shape} and y_{part} {y.shape}, expected [N, 28, 28] and [N]")
        if y.dtype.kind not in "iu" or y.min() < 0 or y.max() > 9:
            raise DataError(f"{path}: y_{part} must be labels 0..9, got {y.dtype} up to {y.max()}")
