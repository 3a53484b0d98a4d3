"""CIFAR-10 and CIFAR-100 from a folder, in any of three forms: python batches, binary batches, parquet.

Inputs are normalised by the channels' usual mean and deviation (0..1 scale), the same for both data sets as in the
FADAS program. Training batches are cropped at random from the image padded by 4 black pixels, and flipped.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label
from fastagg.sim.data.files import labels_in_range, places, read_bytes, read_table

MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2023, 0.1994, 0.2010)
PADDING = 4
PIXELS = 3 * 32 * 32

Arrays = tuple[np.ndarray, np.ndarray]  # uint8 images [N, 3, 32, 32], int64 labels [N]


@dataclass(frozen=True)
class Kind:
    """Where one of the two data sets lies, and what its labels are called."""

    classes: int
    folders: tuple[str, ...]
    python: dict[str, tuple[str, ...]]
    binary: dict[str, tuple[str, ...]]
    label: bytes  # in python batches
    label_bytes: int  # labels before each image of a binary batch, the last one counts
    columns: tuple[tuple[str, str], ...]  # image and label of a table, as different exports call them


CIFAR10 = Kind(
    classes=10,
    folders=("cifar-10-batches-py", "cifar-10-batches-bin", "cifar10", "cifar10/plain_text"),
    python={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    binary={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    label=b"labels",
    label_bytes=1,
    columns=(("img", "label"), ("image", "label")),
)
CIFAR100 = Kind(
    classes=100,
    folders=("cifar-100-python", "cifar-100-binary", "cifar100", "cifar100/cifar100"),
    python={"train": ("train",), "test": ("test",)},
    binary={"train": ("train.bin",), "test": ("test.bin",)},
    label=b"fine_labels",
    label_bytes=2,
    columns=(("img", "fine_label"), ("image", "fine_label")),
)


def load_10(folder: Path, clients: int, alpha: float, seed: int, min_samples: int, augment: bool) -> FederatedData:
    """Return CIFAR-10, inputs fp32 [3, 32, 32], split over ``clients`` by Dirichlet(alpha) on the labels.

    DataError when the files are missing, cut off or hold something else.
    """
    return _load(CIFAR10, folder, clients, alpha, seed, min_samples, augment)


def load_100(folder: Path, clients: int, alpha: float, seed: int, min_samples: int, augment: bool) -> FederatedData:
    """Return CIFAR-100 with its 100 fine labels, otherwise as :func:`load_10`."""
    return _load(CIFAR100, folder, clients, alpha, seed, min_samples, augment)


def crop_and_flip(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return ``x`` [B, 3, H, W] each shifted by up to 4 pixels, black where nothing was, half of them mirrored."""
    count, channels, height, width = x.shape
    shift = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, (2, count)))
    flip = torch.from_numpy(rng.random(count) < 0.5)
    black = _normalise(torch.zeros(1, 3, 1, 1)).to(x.device)
    padded = torch.nn.functional.pad(x - black, (PADDING,) * 4) + black
    rows = shift[0][:, None, None, None] + torch.arange(height)[:, None]
    columns = torch.arange(width).expand(count, width)
    columns = torch.where(flip[:, None], columns.flip(1), columns) + shift[1][:, None]
    batch, channel = torch.arange(count)[:, None, None, None], torch.arange(channels)[:, None, None]
    where = (batch, channel, rows, columns[:, None, None, :])
    return padded[tuple(index.to(x.device) for index in where)]


def _load(
    kind: Kind, folder: Path, clients: int, alpha: float, seed: int, min_samples: int, augment: bool
) -> FederatedData:
    (x, y), (x_test, y_test) = _find(kind, folder)
    return split_by_label(
        Samples(_images(x), torch.from_numpy(y), crop_and_flip if augment else None),
        Samples(_images(x_test), torch.from_numpy(y_test)),
        classes=kind.classes,
        clients=clients,
        alpha=alpha,
        min_samples=min_samples,
        seed=seed,
    )


def _images(x: np.ndarray) -> torch.Tensor:
    return _normalise(torch.from_numpy(x).float().div_(255))


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))


def _find(kind: Kind, folder: Path) -> tuple[Arrays, Arrays]:
    """Return training and test arrays in the first form that is found."""
    for place in places(folder, *kind.folders):
        for read, names in ((_python, kind.python), (_binary, kind.binary)):
            if (place / names["test"][0]).is_file():
                return _files(kind, place, read, names["train"]), _files(kind, place, read, names["test"])
        if (train := _table(kind, place, "train")) and (test := _table(kind, place, "test")):
            return train, test
    raise DataError(
        f"no CIFAR-{kind.classes} in {folder}: expected {kind.folders[0]}/ with {kind.python['test'][0]}, "
        f"{kind.folders[1]}/ with {kind.binary['test'][0]}, or train-*.parquet and test-*.parquet"
    )


def _files(kind: Kind, place: Path, read: Any, names: Sequence[str]) -> Arrays:
    parts = [read(kind, place / name) for name in names]
    for name, (_, labels) in zip(names, parts, strict=True):
        labels_in_range(labels, kind.classes, place / name)
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


class _ArraysOnly(pickle.Unpickler):
    """Builds NumPy arrays and plain containers, and refuses every other class: a pickle can run code."""

    ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "encode", "scalar"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("numpy", "_codecs") and name in self.ALLOWED:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch of images")


def _python(kind: Kind, path: Path) -> Arrays:
    try:
        batch = _ArraysOnly(io.BytesIO(read_bytes(path)), encoding="bytes").load()
        images, labels = np.asarray(batch[b"data"]), np.asarray(batch[kind.label])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"{path} is not a CIFAR-{kind.classes} batch: {error!r}") from error
    if images.dtype != np.uint8 or images.shape != (len(labels), PIXELS):
        raise DataError(f"{path}: data {images.dtype} {images.shape}, expected uint8 ({len(labels)}, {PIXELS})")
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _binary(kind: Kind, path: Path) -> Arrays:
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = kind.label_bytes + PIXELS
    if len(data) == 0 or len(data) % record:
        raise DataError(f"{path} has {len(data)} bytes, expected a multiple of {record}")
    data = data.reshape(-1, record)
    return data[:, kind.label_bytes :].reshape(-1, 3, 32, 32), data[:, kind.label_bytes - 1].astype(np.int64)


def _table(kind: Kind, place: Path, split: str) -> Arrays | None:
    problem: DataError | None = None
    for image, label in kind.columns:
        try:
            table = read_table(place, split, (image, label))
        except DataError as error:
            problem = error
            continue
        if table is None:
            return None
        labels_in_range(table[label], kind.classes, place)
        return np.stack([_decode(cell, place) for cell in table[image]]), np.array(table[label], dtype=np.int64)
    raise problem or DataError(f"the table in {place} has no images")


def _decode(cell: Any, place: Path) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ConfigError("images in parquet files need Pillow: pip install pillow") from None
    try:
        picture = Image.open(io.BytesIO(cell["bytes"])) if isinstance(cell, dict) else cell
        pixels = np.asarray(picture.convert("RGB"))
    except (UnidentifiedImageError, OSError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the table in {place} holds an image that cannot be read: {error}") from error
    if pixels.shape != (32, 32, 3):
        raise DataError(f"the table in {place} holds an image of shape {pixels.shape}, expected (32, 32, 3)")
    return pixels.transpose(2, 0, 1)
