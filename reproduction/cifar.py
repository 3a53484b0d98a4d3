"""CIFAR-10 and CIFAR-100 from a folder: parquet files as they are distributed, or arrays in an .npz file.

Inputs are normalised with the usual mean and deviation of the channels (scale 0..1). Both data sets use the same ones,
as the FADAS program does. Training batches are padded by 4 black pixels, cropped at random, and half of them are
mirrored.
"""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import npz
import numpy as np
import torch
from shared import find_data, labels_in_range, read_table

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label

NEEDS = "train-*.parquet and test-*.parquet, or {0}.npz; there or in {0}/"
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2023, 0.1994, 0.2010)
PADDING = 4
COLUMNS = {10: (("img", "image"), ("label",)), 100: (("img", "image"), ("fine_label",))}  # of tables, by the classes


def cifar10(**how: Any) -> FederatedData:
    """Return CIFAR-10 (see :func:`load`)."""
    return load(10, **how)


def cifar100(**how: Any) -> FederatedData:
    """Return CIFAR-100 (see :func:`load`)."""
    return load(100, **how)


def load(
    classes: int, dir: str | None = None, alpha: float = 0.3, min_samples: int = 2, augment: bool = True,
    unlabelled: int | None = None, **split: Any,
) -> FederatedData:  # fmt: skip
    """Return a data set, inputs fp32 [3, 32, 32], split by label (see split_by_label).

    CIFAR-100 has its 100 fine labels. ``unlabelled``, 10 or 100: the test images of that data set serve distillation.
    DataError if files are missing, incomplete or have other content.
    """
    train, test = _samples(classes, dir, augment)
    data = split_by_label(train, test, classes, alpha=alpha, min_samples=min_samples, **split)
    return data if unlabelled is None else replace(data, unlabelled=_samples(unlabelled, dir, False)[1].x)


def _samples(classes: int, dir: str | None, augment: bool) -> tuple[Samples, Samples]:
    """Return the training set and the test set."""
    name = f"cifar{classes}"
    inside = (".", name, f"{name}/plain_text", f"{name}/{name}")
    path, arrays = find_data(name, dir, inside, lambda place: _read(place, classes), NEEDS.format(name))
    parts = []
    for key in ("train", "test"):
        x, y = arrays[f"x_{key}"], arrays[f"y_{key}"].astype(np.int64)
        if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
            raise DataError(f"{path}: x_{key} {x.dtype} {x.shape}, expected uint8 [N, 32, 32, 3]")
        labels_in_range(y, classes, path)
        images = _normalise(torch.from_numpy(x.transpose(0, 3, 1, 2)).float().div_(255))
        parts.append(Samples(images, torch.from_numpy(y), crop_and_flip if augment and key == "train" else None))
    return parts[0], parts[1]


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


def _normalise(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(DEVIATION).view(3, 1, 1))


def _read(place: Path, classes: int) -> tuple[Path, npz.Arrays] | None:
    """Return where arrays are, and the arrays by npz.KEYS."""
    path, arrays = place / f"cifar{classes}.npz", npz.Arrays()
    if path.is_file():
        return path, npz.read(path)
    for split in ("train", "test"):
        if (table := read_table(place, [split], COLUMNS[classes])) is None:
            return None
        arrays |= {
            f"x_{split}": np.stack([_decode(cell, place) for cell in table[0]]),
            f"y_{split}": np.array(table[1]),
        }
    return place, arrays


def _decode(cell: Foreign, place: Path) -> np.ndarray:
    from PIL import Image  # the simulator needs matplotlib, and matplotlib needs Pillow

    try:
        picture = Image.open(io.BytesIO(cell["bytes"])) if isinstance(cell, dict) else cell
        pixels = np.asarray(picture.convert("RGB"))
    except (OSError, KeyError, TypeError, AttributeError) as error:  # Pillow's own errors are OSErrors
        raise DataError(f"the table in {place} holds an image that cannot be read: {error}") from error
    if pixels.shape != (32, 32, 3):
        raise DataError(f"the table in {place} holds an image of shape {pixels.shape}, expected (32, 32, 3)")
    return pixels
