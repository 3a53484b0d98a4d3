"""What several modules here need: finding data in a folder, tables that ``datasets`` has saved, a tokenizer."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import Samples

Found = TypeVar("Found")


class Text(NamedTuple):
    """Facts for a text model: inputs are tokens 0..vocabulary-1; ``padding`` fills short inputs.

    ``pretrained`` is the folder of the model that the tokens belong to, or None.
    """

    vocabulary: int
    padding: int | None = None
    pretrained: Path | None = None


class Absent(DataError):
    """A folder has none of the files that a data set may be in."""


def existing(name: str, given: str | None, needs: str) -> Path:
    """Return the folder ``given`` of the data ``name``. DataError if it is not named or does not exist."""
    if given is None:
        raise DataError(f"data {name!r} is read from a folder, name it with --data-dir (data.dir): {needs}")
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise DataError(f"the data folder {given} does not exist: expected a folder with {needs}")
    return folder


def find(folder: Path, inside: Sequence[str], read: Callable[[Path], Found | None]) -> Found:
    """Return what ``read`` finds in the first of the folders ``inside`` this one that has it. Absent if none has."""
    for place in (folder / name for name in inside):
        if place.is_dir() and (found := read(place)) is not None:
            return found
    raise Absent(f"none of the files are in {folder}")


def find_data(
    name: str, given: str | None, inside: Sequence[str], read: Callable[[Path], Found | None], needs: str
) -> Found:
    """Return what :func:`find` does in the folder ``given``. DataError, which says what is needed, if there is none."""
    folder = existing(name, given, needs)
    try:
        return find(folder, inside, read)
    except Absent:
        raise DataError(f"no data {name!r} in {folder}: expected {needs}") from None


def labels_in_range(labels: Sequence[int] | np.ndarray, classes: int, path: Path) -> None:
    """Raise DataError if there is no label, or a label is not in 0..classes-1."""
    if len(labels) == 0:
        raise DataError(f"{path} holds no samples")
    if min(labels) < 0 or max(labels) >= classes:
        raise DataError(f"{path}: labels must be 0..{classes - 1}, got {min(labels)} to {max(labels)}")


# The possible endings of a split's file, and the name of the form in ``datasets``.
FORMS = {"parquet": "parquet", "json": "json", "jsonl": "json", "tsv": "csv", "csv": "csv"}


def read_table(place: Path, splits: Sequence[str], columns: Sequence[Sequence[str]]) -> list[list[Foreign]] | None:
    """Return columns of one split as lists; None if the folder has no such table.

    ``splits`` and each of ``columns`` are names that different exports use. It reads what ``datasets`` reads: what it
    saved itself (dataset_dict.json), and SPLIT-*.parquet, SPLIT.tsv, SPLIT.json and similar in the folder or its data/.
    DataError if a file is damaged or lacks a column. ConfigError if the library is not installed.
    """
    saved = (place / "dataset_dict.json").is_file()
    files = [place] if saved else _files(place, splits)
    if not files:
        return None
    try:
        import datasets
    except ImportError:
        raise ConfigError('such files are read by datasets: pip install "fastagg[nlp]"') from None
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as cache:
            parts = datasets.load_from_disk(str(place)) if saved else {splits[0]: _loaded(datasets, files, cache)}
            table = next((parts[split] for split in splits if split in parts), None)
            if table is None:
                raise DataError(f"{place} has no split {splits[0]!r}, only {', '.join(parts)}")
            found = [[name for name in names if name in table.column_names] for names in columns]
            if missing := [" or ".join(names) for names, own in zip(columns, found, strict=True) if not own]:
                raise DataError(f"the table in {place} lacks the column {', '.join(missing)}")
            return [list(table[own[0]]) for own in found]
    except (OSError, ValueError, KeyError, TypeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{files[0]} is not a readable table: {' '.join(str(error).split())}") from error


def _files(place: Path, splits: Sequence[str]) -> list[Path]:
    for name in (f"{part}{split}" for part in ("", "data/") for split in splits):
        for ending in FORMS:
            if found := [*sorted(place.glob(f"{name}-*.{ending}")), *place.glob(f"{name}.{ending}")]:
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


def load_tokenizer(folder: Path, name: str) -> tuple[Foreign, Text]:
    """Return the tokenizer of a pretrained model, and what the model needs to know of it.

    ``name``: the model's folder, a path or a name inside the data's ``folder``. DataError if it is not there or cannot
    be read. ConfigError without transformers.
    """
    places = (folder / name, Path(name).expanduser())
    model = next((place for place in places if (place / "config.json").is_file()), None)
    if model is None:
        raise DataError(
            f"no pretrained model {name!r} in {folder}: expected {folder / name} with config.json, the weights and the "
            "tokenizer, as transformers' save_pretrained writes them (data.pretrained names another)"
        )
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError('text needs transformers: pip install "fastagg[nlp]"') from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"no readable tokenizer in {model}: {error}") from None
    if tokenizer.pad_token_id is None:
        raise DataError(f"the tokenizer in {model} has no padding token")
    return tokenizer, Text(len(tokenizer), tokenizer.pad_token_id, model)


def exactly(name: str, widths: Sequence[int], count: int) -> Sequence[int]:
    """Return ``widths`` if there are ``count``. Otherwise ConfigError with the model's name."""
    if len(widths) != count:
        raise ConfigError(f"model {name!r} takes {count} widths, got {list(widths)}")
    return widths


def standardised(path: Path | str, arrays: Mapping[str, np.ndarray]) -> tuple[Samples, Samples]:
    """Return training and test set, scaled so that all numbers of the training inputs have mean 0 and deviation 1.

    Numbers that fp32 does not hold, such as times since 1970, are scaled in fp64."""
    keys = ("x_train", "x_test")
    with np.errstate(over="ignore"):
        kind = np.float32 if all(np.array_equal(arrays[k].astype(np.float32), arrays[k]) for k in keys) else np.float64
    x, x_test = (arrays[key].astype(kind) for key in keys)
    mean, deviation = x.mean(dtype=np.float64), x.std(dtype=np.float64)
    if not 0 < deviation < np.inf:
        raise DataError(f"{path}: all training inputs are equal, or too large: nothing to learn from")
    for part in (x, x_test):  # in place: they may be large
        np.subtract(part, kind(mean), out=part)
        np.divide(part, kind(deviation), out=part)
    labels = (torch.from_numpy(arrays[key].astype(np.int64)) for key in ("y_train", "y_test"))
    return Samples(torch.from_numpy(x).float(), next(labels)), Samples(torch.from_numpy(x_test).float(), next(labels))
