"""Labelled texts as tokens: GLUE's RTE, MRPC and SST-2, and 20 Newsgroups.

The tokenizer is that of a pretrained model's folder (transformers). GLUE's validation split is the test set, because
its labels are public. 20 Newsgroups is the version sorted by date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from shared import find_data, labels_in_range, load_tokenizer, read_table

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, split_by_label

# The folder in GLUE's own archive, and the columns: as tables are exported, or in the archive's TSV files.
PAIR = (("sentence1", "#1 String"), ("sentence2", "#2 String"), ("label", "Quality"))
TASKS = {"rte": ("RTE", PAIR), "mrpc": ("MRPC", PAIR), "sst2": ("SST-2", (("sentence",), ("label",)))}
FORMS = "(or saved by datasets, or parquet), and the folder of the pretrained model"
LABELS = {"entailment": 0, "not_entailment": 1, "0": 0, "1": 1, 0: 0, 1: 1}


class Examples(NamedTuple):
    """Labelled texts: one list, or two of equal length for pairs; ``where``: their source, for messages."""

    texts: Sequence[list[Foreign]]
    labels: list[int]
    where: Path


def glue(task: str, dir: str | None = None, **how: Any) -> FederatedData:
    """Return ``task`` (rte, mrpc or sst2) as tokens int64 [max_length], 2 classes, split by label (see split_by_label).

    DataError if files are missing or damaged. ConfigError if transformers is not installed.
    """
    if task not in TASKS:
        raise DataError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    own, columns = TASKS[task]

    def read(place: Path) -> tuple[Examples, Examples] | None:
        train, test = (read_table(place, splits, columns) for splits in (["train"], ["validation", "dev"]))
        return None if train is None or test is None else (_checked(train, place), _checked(test, place))

    inside = (own, task, f"glue/{own}", f"glue/{task}")
    needs = f"RTE/, MRPC/ or SST-2/ with train.tsv and dev.tsv {FORMS}"
    return _split(find_data("glue", dir, inside, read, needs), 2, dir, **how)


def _checked(table: list[list[Foreign]], place: Path) -> Examples:
    *texts, labels = table
    if unknown := [label for label in labels if label not in LABELS]:
        raise DataError(f"{place}: unknown label {unknown[0]!r}")
    for column in texts:
        for number, text in enumerate(column, start=1):
            if not isinstance(text, str):
                raise DataError(f"{place}: sample {number} has {text!r} for a text")
    return Examples(texts, [LABELS[label] for label in labels], place)


def newsgroups(dir: str | None = None, **how: Any) -> FederatedData:
    """Return 20news-bydate-train/GROUP/MESSAGE, or a table with text and label, as tokens int64 [max_length], 20
    classes, split by group (see split_by_label). Errors as of :func:`glue`."""

    def read(place: Path) -> tuple[Examples, Examples] | None:
        train, test = (_messages(place, split) for split in ("train", "test"))
        return None if train is None or test is None else (train, test)

    needs = f"20news-bydate-train/ and 20news-bydate-test/ {FORMS}"
    return _split(find_data("newsgroups", dir, (".", "20newsgroups", "newsgroups"), read, needs), 20, dir, **how)


def _messages(place: Path, split: str) -> Examples | None:
    inside = place / f"20news-bydate-{split}"
    if not inside.is_dir():
        table = read_table(place, [split], [["text"], ["label"]])
        return None if table is None else Examples([table[0]], [int(label) for label in table[1]], place)
    from sklearn.datasets import load_files

    # latin-1 can decode every byte. The messages are older than UTF-8.
    bunch = load_files(str(inside), encoding="latin-1", shuffle=False)
    if len(bunch.target_names) != 20:
        raise DataError(f"{inside} has {len(bunch.target_names)} groups, expected 20")
    return Examples([list(bunch.data)], [int(label) for label in bunch.target], inside)


def _split(
    parts: Sequence[Examples], classes: int, dir: str | None, pretrained: str = "bert-base-uncased",
    max_length: int = 128, alpha: float = 0.6, min_samples: int = 2, **split: Any,
) -> FederatedData:  # fmt: skip
    """Tokenise and split. ``pretrained``: a folder with tokenizer and model, a path, or a name inside ``dir``."""
    tokenizer, text = load_tokenizer(Path(dir or ".").expanduser(), pretrained)
    found = []
    for texts, labels, where in parts:
        labels_in_range(labels, classes, where)
        encoded = tokenizer(
            *texts, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt",
            return_attention_mask=False,
        )  # fmt: skip
        found.append(Samples(encoded["input_ids"], torch.tensor(labels, dtype=torch.int64, device="cpu")))
    train, test = found
    return replace(split_by_label(train, test, classes, alpha=alpha, min_samples=min_samples, **split), text=text)
