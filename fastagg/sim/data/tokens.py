"""Converts texts to tokens, with the tokenizer in a pretrained model's folder (transformers)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples, Text, split_by_label
from fastagg.sim.data.files import labels_in_range


@dataclass(frozen=True)
class Examples:
    """Labelled texts: one list, or two of equal length for pairs; ``where``: their source, for messages."""

    texts: list[list[str]]
    labels: list[int]
    where: str


def split_texts(
    train: Examples, test: Examples, classes: int, folder: Path, pretrained: str, max_length: int, clients: int,
    alpha: float, min_samples: int, seed: int,
) -> FederatedData:  # fmt: skip
    """Tokenise both sets and divide the first over ``clients`` by Dirichlet(alpha) on the labels."""
    model = find_pretrained(folder, pretrained)
    tokenizer = load_tokenizer(model)
    if tokenizer.pad_token_id is None:
        raise DataError(f"the tokenizer in {model} has no padding token")
    text = Text(len(tokenizer), tokenizer.pad_token_id, model)
    first, second = (_encode(part, classes, tokenizer, max_length) for part in (train, test))
    return split_by_label(first, second, classes, clients, alpha, min_samples, seed, text)


def find_pretrained(folder: Path, name: str) -> Path:
    """Return the model's folder, given as a path or as a name inside the data folder. DataError if it is not there."""
    for place in (folder / name, Path(name).expanduser()):
        if (place / "config.json").is_file():
            return place
    raise DataError(
        f"no pretrained model {name!r} in {folder}: expected {folder / name} with config.json, the weights and the "
        "tokenizer, as transformers' save_pretrained writes them (data.pretrained names another)"
    )


def load_tokenizer(model: Path) -> Foreign:
    """Return the tokenizer in a model's folder. ConfigError without transformers, DataError if it is not readable."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError('text needs transformers: pip install "fastagg[nlp]"') from None
    try:
        return AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"no readable tokenizer in {model}: {error}") from None


def _encode(examples: Examples, classes: int, tokenizer: Foreign, max_length: int) -> Samples:
    labels_in_range(examples.labels, classes, Path(examples.where))
    encoded = tokenizer(
        *examples.texts, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt",
        return_attention_mask=False,
    )  # fmt: skip
    return Samples(encoded["input_ids"], torch.tensor(examples.labels))
