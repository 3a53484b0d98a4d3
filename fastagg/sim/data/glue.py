"""GLUE's RTE, MRPC and SST-2 from a folder. The validation split is the test set, because its labels are public."""

from __future__ import annotations

from pathlib import Path

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData
from fastagg.sim.data.files import places, read_table
from fastagg.sim.data.tokens import Examples, split_texts

# The folder in GLUE's own archive, the columns of its TSV (texts, then the label), and the columns of exported tables.
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

    DataError if files are missing or damaged. ConfigError if transformers is not installed.
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
    for place in places(folder, own, task, f"glue/{own}", f"glue/{task}")[1:]:
        # GLUE's own archive has TSV files with other names of columns, and calls this split dev.
        own_name = "train" if split == "train" else "dev"
        archive = (place / f"{own_name}.tsv").is_file()
        wanted = tsv if archive else columns
        if (table := read_table(place, own_name if archive else split, wanted)) is not None:
            return _labelled(table[wanted[-1]], [table[key] for key in wanted[:-1]], str(place))
    return None


def _labelled(labels: list[Foreign], texts: list[list[str]], where: str) -> Examples:
    for label in labels:
        if label not in LABELS:
            raise DataError(f"{where}: unknown label {label!r}")
    for column in texts:
        for number, text in enumerate(column, start=1):
            if not isinstance(text, str):
                raise DataError(f"{where}: sample {number} has {text!r} for a text")
    return Examples(texts, [LABELS[label] for label in labels], where)
