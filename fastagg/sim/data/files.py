"""Small helpers for data in a folder: finding it, and reading tables that ``datasets`` has saved."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError


def places(folder: Path, *inside: str) -> list[Path]:
    """Return the folders to search: ``folder`` itself, and those of ``inside`` that exist in it."""
    return [folder, *(folder / name for name in inside if (folder / name).is_dir())]


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. DataError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return a file's text. DataError if it cannot be read or is not text."""
    try:
        return path.read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path}: expected text in {encoding}, got other bytes") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def labels_in_range(labels: Sequence[int] | np.ndarray, classes: int, path: Path) -> None:
    """Raise DataError if there is no label, or a label is not in 0..classes-1."""
    if len(labels) == 0:
        raise DataError(f"{path} holds no samples")
    if min(labels) < 0 or max(labels) >= classes:
        raise DataError(f"{path}: labels must be 0..{classes - 1}, got {min(labels)} to {max(labels)}")


# The possible endings of a split's file, and the name of the form in ``datasets``.
FORMS = {"parquet": "parquet", "json": "json", "jsonl": "json", "tsv": "csv", "csv": "csv"}


def read_table(folder: Path, split: str, columns: Sequence[str]) -> dict[str, list[Foreign]] | None:
    """Return ``columns`` of one split as lists; None if the folder has no such table.

    It reads the files that ``datasets`` reads: what it saved itself (dataset_dict.json), and SPLIT-*.parquet,
    SPLIT.tsv, SPLIT.json and similar in ``folder`` or its data/. DataError if a file is damaged or lacks a column.
    ConfigError if the library is not installed.
    """
    saved = (folder / "dataset_dict.json").is_file()
    found = [] if saved else _files(folder, split)
    if not saved and not found:
        return None
    datasets = _datasets()
    try:
        with tempfile.TemporaryDirectory() as cache:
            if saved:
                whole = datasets.load_from_disk(str(folder))
                if split not in whole:
                    raise DataError(f"{folder} has no split {split!r}, only {', '.join(whole)}")
                table = whole[split]
            else:
                table = _loaded(datasets, found, cache)
            if missing := [name for name in columns if name not in table.column_names]:
                raise DataError(f"the table in {folder} lacks the column {', '.join(missing)}")
            return {name: list(table[name]) for name in columns}
    except (OSError, ValueError, KeyError, TypeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, DataError):
            raise
        where = folder if saved else found[0]
        raise DataError(f"{where} is not a readable table: {' '.join(str(error).split())}") from error


def _files(folder: Path, split: str) -> list[Path]:
    for place in (folder, folder / "data"):
        for ending in FORMS:
            if found := [*sorted(place.glob(f"{split}-*.{ending}")), *place.glob(f"{split}.{ending}")]:
                return found
    return []


def _loaded(datasets: Foreign, files: Sequence[Path], cache: str) -> Foreign:
    ending = files[0].suffix[1:]
    # In GLUE's TSV files quotes are part of the text, and one file begins with a byte-order mark.
    tabs = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "encoding": "utf-8-sig"} if ending == "tsv" else {}
    names = [str(file) for file in files]
    return datasets.load_dataset(
        FORMS[ending], data_files=names, split="train", cache_dir=cache, keep_in_memory=True, **tabs
    )


def _datasets() -> Foreign:
    try:
        import datasets
    except ImportError:
        raise ConfigError('such files are read by datasets: pip install "fastagg[nlp]"') from None
    datasets.disable_progress_bars()
    return datasets
