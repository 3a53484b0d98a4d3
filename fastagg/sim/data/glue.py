"""GLUE's RTE, MRPC and SST-2 from a folder; the validation split is the test set, as its labels are public."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import places, read_table, read_text
from fastagg.sim.data.tokens import Examples, split_texts

# Folder in GLUE's own archive, the columns of its TSV (texts, then the label) and those of exported tables.
TASKS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "rte": ("RTE", ("sentence1", "sentence2", "label"), ("sentence1", "sentence2", "label")),
    "mrpc": ("MRPC", ("#1 String", "#2 String", "Quality"), ("sentence1", "sentence2", "label")),
    "sst2": ("SST-2", ("sentence", "label"), ("sentence", "label")),
}
LABELS = {"entailment": 0, "not_entailment": 1, "0": 0, "1": 1, 0: 0, 1: 1}


def load(
    folder: Path, task: str, clients: int, alpha: float, seed: int, min_samples: int, pretrained: str, max_length: int
) -> FederatedData:
    """Return ``task`` as tokens int64 [max_length], 2 classes, split by Dirichlet(alpha) on the labels.

    DataError when the files are missing or damaged; ConfigError when transformers is not installed.
    """
    own = TASKS[task][0]
    train, test = (_examples(folder, task, split) for split in ("train", "validation"))
    if train is None or test is None:
        raise DataError(
            f"no {own} in {folder}: expected {own}/ with train.tsv and dev.tsv, or {task}/ as saved by datasets, "
            "or with train-*.parquet and validation-*.parquet"
        )
    return split_texts(train, test, 2, folder, pretrained, max_length, clients, alpha, min_samples, seed)


def _examples(folder: Path, task: str, split: str) -> Examples | None:
    own, tsv, columns = TASKS[task]
    for place in places(folder, own, task, f"glue/{own}", f"glue/{task}"):
        path = place / {"train": "train.tsv", "validation": "dev.tsv"}[split]
        if path.is_file() and place != folder:
            return _from_tsv(path, tsv)
        if place != folder and (table := read_table(place, split, columns)) is not None:
            return _labelled(table[columns[-1]], [table[name] for name in columns[:-1]], str(place))
    return None


def _from_tsv(path: Path, columns: tuple[str, ...]) -> Examples:
    # utf-8-sig: MRPC's own files begin with a byte-order mark. Quotes are text there.
    lines = csv.reader(io.StringIO(read_text(path, "utf-8-sig")), delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        rows = [row for row in lines if row]
    except csv.Error as error:
        raise DataError(f"{path} is not a TSV file: {error}") from None
    header = rows[0] if rows else []
    if missing := [name for name in columns if name not in header]:
        raise DataError(f"{path} lacks the column {', '.join(missing)}")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} columns, expected {len(header)}")
    taken = [[row[header.index(name)] for row in rows[1:]] for name in columns]
    return _labelled(taken[-1], taken[:-1], str(path))


def _labelled(labels: list, texts: list[list[str]], where: str) -> Examples:
    for label in labels:
        if label not in LABELS:
            raise DataError(f"{where}: unknown label {label!r}")
    return Examples(texts, [LABELS[label] for label in labels], where)
