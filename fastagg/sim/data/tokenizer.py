"""The tokenizer of a pretrained model's folder, for data of your own that are text."""

from __future__ import annotations

from pathlib import Path

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import Text


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
