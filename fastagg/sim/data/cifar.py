"""CIFAR-10 and CIFAR-100 from a folder: parquet files as they are distributed, or arrays in an .npz file.

Inputs are normalised with the usual mean and deviation of the channels (scale 0..1). Both data sets use the same ones,
as the FADAS program does. Training batches are padded by 4 black pixels, cropped at random, and half of them are
mirrored.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data import npz
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label
from fastagg.sim.data.files import labels_in_range, places, read_table

MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2023, 0.1994, 0.2010)
PADDING = 4

Arrays = tuple[np.ndarray, np.ndarray]  # uint8 images [N, 3, 32, 32], int64 labels [N]


@dataclass(frozen=True)
class Kind:
    """The files of one of the two data sets, and the names of its labels."""

    classes: int
    file: str
    folders: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]  # image and label of a table, by the names that different exports use


CIFAR10 = Kind(10, "cifar10.npz", ("cifar10", "cifar10/plain_text"), (("img", "label"), ("image", "label")))
CIFAR100 = Kind(
    100, "cifar100.npz", ("cifar100", "cifar100/cifar100"), (("img", "fine_label"), ("image", "fine_label"))
)


def load(
    kind: Kind, folder: Path, clients: int, alpha: float, seed: int, min_samples: int, augment: bool
) -> FederatedData:
    """Return a data set, inputs fp32 [3, 32, 32], split over ``clients`` by Dirichlet(alpha) on the labels.

    CIFAR-100 has its 100 fine labels. DataError if files are missing, incomplete or have other content.
    """
    (x, y), (x_test, y_test) = _find(kind, folder)
    train = Samples(_images(x), torch.from_numpy(y), crop_and_flip if augment else None)
    test = Samples(_images(x_test), torch.from_numpy(y_test))
    return split_by_label(train, test, kind.classes, clients, alpha, min_samples, seed)


def crop_and_flip(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return ``x`` [B, 3, H, W], each image shifted by up to 4 pixels (new pixels are black), and half of them
    mirrored."""
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


def _images(x: np.ndarray) -> torch.Tensor:
    return _normalise(torch.from_numpy(x).float().div_(255))


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))


def _find(kind: Kind, folder: Path) -> tuple[Arrays, Arrays]:
    """Return training and test arrays from the first kind of files that is found."""
    for place in places(folder, *kind.folders):
        if (place / kind.file).is_file():
            return _arrays(kind, place / kind.file)
        if (train := _table(kind, place, "train")) and (test := _table(kind, place, "test")):
            return train, test
    raise DataError(
        f"no CIFAR-{kind.classes} in {folder}: expected train-*.parquet and test-*.parquet, or {kind.file} with "
        f"{', '.join(npz.KEYS)}; there or in {kind.folders[0]}/"
    )


def _arrays(kind: Kind, path: Path) -> tuple[Arrays, Arrays]:
    arrays = npz.read(path)
    pairs = []
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"].astype(np.int64)
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
            raise DataError(f"{path}: x_{part} {x.dtype} {x.shape}, expected uint8 [N, 32, 32, 3]")
        labels_in_range(y, kind.classes, path)
        pairs.append((x.transpose(0, 3, 1, 2), y))
    return pairs[0], pairs[1]


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


def _decode(cell: Foreign, place: Path) -> np.ndarray:
    from PIL import Image  # the simulator needs matplotlib, and matplotlib needs Pillow

    try:
        picture = Image.open(io.BytesIO(cell["bytes"])) if isinstance(cell, dict) else cell
        pixels = np.asarray(picture.convert("RGB"))
    except (OSError, KeyError, TypeError, AttributeError) as error:  # Pillow's own errors are OSErrors
        raise DataError(f"the table in {place} holds an image that cannot be read: {error}") from error
    if pixels.shape != (32, 32, 3):
        raise DataError(f"the table in {place} holds an image of shape {pixels.shape}, expected (32, 32, 3)")
    return pixels.transpose(2, 0, 1)
