"""MNIST from a folder: ``mnist.npz``, the file that Keras distributes, or the four original IDX files.

IDX is two zero bytes, a type (8: unsigned bytes), the number of axes, their lengths and the values.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import npz
import numpy as np
from shared import find_data, standardised

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, split_by_label
from fastagg.sim.data.files import read_bytes

NEEDS = "mnist.npz, or the four IDX files train-images-idx3-ubyte[.gz], ...; there or in mnist/"
FILE = "mnist.npz"
IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def load(dir: str | None = None, alpha: float = 0.3, min_samples: int = 2, **split: Any) -> FederatedData:
    """Return MNIST, inputs [1, 28, 28], split by label (see split_by_label).

    mnist.npz has uint8 images x_train [N, 28, 28] and x_test [M, 28, 28], and labels 0..9 y_train [N] and y_test [M].
    The IDX files may be gzipped. DataError if files are missing or have another form.
    """
    path, arrays = find_data("mnist", dir, (".", "mnist", "MNIST/raw"), _read, NEEDS)
    if arrays["x_train"].shape[1:] != (28, 28) or arrays["y_train"].max() > 9:
        raise DataError(f"{path}: x_train {arrays['x_train'].shape}, expected [N, 28, 28] with labels 0..9")
    arrays |= {key: arrays[key][:, None] for key in ("x_train", "x_test")}
    train, test = standardised(path, arrays)
    classes = int(arrays["y_train"].max()) + 1
    return split_by_label(train, test, classes, alpha=alpha, min_samples=min_samples, **split)


def _read(place: Path) -> tuple[Path, npz.Arrays] | None:
    if (place / FILE).is_file():
        return place / FILE, npz.read(place / FILE)
    if _idx(place, IDX["x_train"]) is None:
        return None
    return place, npz.check(place, {key: _array(place, name) for key, name in IDX.items()})


def _idx(place: Path, name: str) -> Path | None:
    """Return PLACE/NAME, PLACE/NAME.gz, or NAME with ".idx" instead of "-idx". None if none of them exists."""
    names = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((place / one for one in names if (place / one).is_file()), None)


def _array(place: Path, name: str) -> np.ndarray:
    if (path := _idx(place, name)) is None:
        raise DataError(f"{place} lacks the IDX file {name}")
    data = read_bytes(path)
    try:
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a readable gzip file: {error}") from error
    start = 4 + 4 * data[3] if len(data) > 3 else 0
    if data[:3] != b"\0\0\x08" or len(data) < start:
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    shape = tuple(map(int, np.frombuffer(data, ">u4", data[3], 4)))
    if len(data) != start + int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{path} has {len(data)} bytes, its header {shape} needs others")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
