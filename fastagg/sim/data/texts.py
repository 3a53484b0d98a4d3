"""Labelled texts as tokens: GLUE's RTE, MRPC and SST-2, and 20 Newsgroups.

The tokenizer is that of a pretrained model's folder (transformers). GLUE's validation split is the test set, because
its labels are public. 20 Newsgroups is the version sorted by date.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples, Text, split_by_label
from fastagg.sim.data.files import find, labels_in_range, read_table

# The folder in GLUE's own archive, and the columns: as tables are exported, or in the archive's TSV files.
PAIR = (("sentence1", "#1 String"), ("sentence2", "#2 String"), ("label", "Quality"))
TASKS = {"rte": ("RTE", PAIR), "mrpc": ("MRPC", PAIR), "sst2": ("SST-2", (("sentence",), ("label",)))}
LABELS = {"entailment": 0, "not_entailment": 1, "0": 0, "1": 1, 0: 0, 1: 1}


class Examples(NamedTuple):
    """Labelled texts: one list, or two of equal length for pairs; ``where``: their source, for messages."""

    texts: Sequence[list[Foreign]]
    labels: list[int]
    where: Path


def load_glue(folder: Path, task: str, **how: Any) -> FederatedData:
    """Return ``task`` as tokens int64 [max_length], 2 classes, split by label (see split_by_label).

    DataError if files are missing or damaged. ConfigError if transformers is not installed.
    """
    own, columns = TASKS[task]

    def read(place: Path) -> tuple[Examples, Examples] | None:
        train, test = (read_table(place, splits, columns) for splits in (["train"], ["validation", "dev"]))
        return None if train is None or test is None else (_checked(train, place), _checked(test, place))

    return _split(find(folder, (own, task, f"glue/{own}", f"glue/{task}"), read), 2, folder, **how)


def _checked(table: list[list[Foreign]], place: Path) -> Examples:
    *texts, labels = table
    if unknown := [label for label in labels if label not in LABELS]:
        raise DataError(f"{place}: unknown label {unknown[0]!r}")
    for column in texts:
        for number, text in enumerate(column, start=1):
            if not isinstance(text, str):
                raise DataError(f"{place}: sample {number} has {text!r} for a text")
    return Examples(texts, [LABELS[label] for label in labels], place)


def load_newsgroups(folder: Path, **how: Any) -> FederatedData:
    """Return 20news-bydate-train/GROUP/MESSAGE, or a table with text and label, as tokens int64 [max_length], 20
    classes, split by group (see split_by_label). Errors as of :func:`load_glue`."""

    def read(place: Path) -> tuple[Examples, Examples] | None:
        train, test = (_messages(place, split) for split in ("train", "test"))
        return None if train is None or test is None else (train, test)

    return _split(find(folder, (".", "20newsgroups", "newsgroups"), read), 20, folder, **how)


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
    parts: Sequence[Examples], classes: int, folder: Path, pretrained: str, max_length: int, **split: Any
) -> FederatedData:
    tokenizer, text = load_tokenizer(folder, pretrained)
    found = []
    for texts, labels, where in parts:
        labels_in_range(labels, classes, where)
        encoded = tokenizer(
            *texts, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt",
            return_attention_mask=False,
        )  # fmt: skip
        found.append(Samples(encoded["input_ids"], torch.tensor(labels, dtype=torch.int64, device="cpu")))
    train, test = found
    return split_by_label(train, test, classes, text=text, **split)


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
