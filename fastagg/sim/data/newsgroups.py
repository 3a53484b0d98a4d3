"""20 Newsgroups, the version sorted by date: 20news-bydate-train/GROUP/MESSAGE, or a table with text and label."""

from __future__ import annotations

from pathlib import Path

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import places, read_table
from fastagg.sim.data.tokens import Examples, split_texts

CLASSES = 20


def load(
    folder: Path, clients: int, alpha: float, seed: int, min_samples: int, pretrained: str, max_length: int
) -> FederatedData:
    """Return the messages as tokens int64 [max_length], 20 classes, split by Dirichlet(alpha) on the groups.

    DataError if files are missing or damaged. ConfigError if transformers is not installed.
    """
    train, test = (_examples(folder, split) for split in ("train", "test"))
    if train is None or test is None:
        raise DataError(
            f"no 20 Newsgroups in {folder}: expected 20news-bydate-train/ and 20news-bydate-test/, a data set with "
            "text and label saved by datasets, or train-*.parquet and test-*.parquet"
        )
    return split_texts(train, test, CLASSES, folder, pretrained, max_length, clients, alpha, min_samples, seed)


def _examples(folder: Path, split: str) -> Examples | None:
    for place in places(folder, "20newsgroups", "newsgroups"):
        if (place / f"20news-bydate-{split}").is_dir():
            return _from_folder(place / f"20news-bydate-{split}")
        if (table := read_table(place, split, ("text", "label"))) is not None:
            return Examples([table["text"]], [int(label) for label in table["label"]], str(place))
    return None


def _from_folder(folder: Path) -> Examples:
    from sklearn.datasets import load_files

    groups = [entry for entry in folder.iterdir() if entry.is_dir()]
    if len(groups) != CLASSES:
        raise DataError(f"{folder} has {len(groups)} groups, expected {CLASSES}")
    # latin-1 can decode every byte. The messages are older than UTF-8.
    bunch = load_files(str(folder), encoding="latin-1", shuffle=False)
    return Examples([list(bunch.data)], [int(label) for label in bunch.target], str(folder))
