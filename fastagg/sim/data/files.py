"""Small helpers for data that lies in a folder: where it is, and reading tables that ``datasets`` left there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastagg.errors import ConfigError, DataError


def places(folder: Path, *inside: str) -> list[Path]:
    """Return the folders to look in: ``folder`` itself and those of ``inside`` that it has."""
    return [folder, *(folder / name for name in inside if (folder / name).is_dir())]


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. DataError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from error


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return a file's text. DataError when it cannot be read or is not text."""
    try:
        return path.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def labels_in_range(labels: Any, classes: int, path: Path) -> None:
    """Raise DataError unless there are labels and all are 0..classes-1."""
    if len(labels) == 0:
        raise DataError(f"{path} holds no samples")
    if min(labels) < 0 or max(labels) >= classes:
        raise DataError(f"{path}: labels must be 0..{classes - 1}, got {min(labels)} to {max(labels)}")


def read_table(folder: Path, split: str, columns: Sequence[str]) -> dict[str, list[Any]] | None:
    """Return ``columns`` of one split as lists; None when the folder has no such table.

    Two layouts: what ``datasets`` saves with save_to_disk (dataset_dict.json), and parquet files SPLIT-*.parquet,
    in ``folder`` or its data/. DataError when a file is damaged or lacks a column, ConfigError when the library that
    reads it is not installed.
    """
    if (folder / "dataset_dict.json").is_file():
        return _columns(_saved(folder, split), columns, folder)
    files = sorted(folder.glob(f"{split}-*.parquet")) or sorted((folder / "data").glob(f"{split}-*.parquet"))
    if not files:
        return None
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError('parquet files need pyarrow: pip install "fastagg[nlp]"') from None
    try:
        table = arrow.concat_tables([parquet.read_table(file) for file in files])
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{files[0]} is not a readable parquet file: {error}") from error
    return _columns({name: table[name].to_pylist() for name in table.column_names if name in columns}, columns, folder)


def read_images(folder: Path, split: str, size: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the pictures in SPLIT/CLASS/ as uint8 [N, 3, size, size], their classes [N], and the classes' names.

    DataError when there are none or one cannot be read; ConfigError when the library that reads them is not installed.
    """
    if not (folder / split).is_dir():
        raise DataError(f"the data folder {folder} has no {split}/ with a folder of pictures for each class")
    try:
        import datasets
    except ImportError:
        raise ConfigError('folders of pictures need datasets and pillow: pip install "fastagg[nlp]" pillow') from None
    try:
        found = datasets.load_dataset("imagefolder", data_dir=str(folder / split), split="train")
        names = list(found.features["label"].names)
        pixels = [np.asarray(picture.convert("RGB").resize((size, size))) for picture in found["image"]]
        labels = np.array(found["label"], dtype=np.int64)
    except (OSError, ValueError, KeyError, AttributeError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{folder / split} cannot be read as a folder of pictures: {error}") from error
    return np.stack(pixels).transpose(0, 3, 1, 2), labels, names


def _saved(folder: Path, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError('a data set saved by datasets needs it: pip install "fastagg[nlp]"') from None
    try:
        saved = datasets.load_from_disk(str(folder))
        if split not in saved:
            raise DataError(f"{folder} has no split {split!r}, only {', '.join(saved)}")
        return saved[split].to_dict()
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} is not a readable saved data set: {error}") from error


def _columns(table: dict[str, list[Any]], columns: Sequence[str], folder: Path) -> dict[str, list[Any]]:
    if missing := [name for name in columns if name not in table]:
        raise DataError(f"the table in {folder} lacks the column {', '.join(missing)}")
    return {name: table[name] for name in columns}
