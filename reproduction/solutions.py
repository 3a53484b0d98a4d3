"""MathInstruct for training and GSM8K for testing: questions, and solutions in words (the FedEcho paper, Table 5).

A sample is the tokens of question and solution, [max_length]. Its labels are the next tokens where the solution is to
be written, and IGNORED elsewhere. The paper gives neither the prompt nor the lengths. The prompt here is the
tokenizer's own chat template, if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from scoring import IGNORED, FinalNumbers
from shared import Absent, find, load_tokenizer, read_table
from torch import Tensor, nn

from fastagg._types import Foreign
from fastagg.errors import ConfigError, DataError
from fastagg.sim.data.federated import FederatedData, Samples, dirichlet_split
from fastagg.sim.seeds import generator

TRAIN = ("source", "instruction", "output")
TEST = ("question", "answer")


@dataclass(frozen=True)
class Solutions:
    """Questions with solutions, and the collection that each is from; ``where``: their file, for messages."""

    questions: list[str]
    answers: list[str]
    sources: list[str]
    where: str


def load(
    clients: int, seed: int, pretrained: str, dir: str = ".", alpha: float = 0.6, min_samples: int = 2,
    max_length: int = 512, samples: int | None = None, queries: int = 100, query_length: int = 64,
    test_samples: int | None = None, new_tokens: int = 256,
) -> FederatedData:  # fmt: skip
    """Return ``samples`` of MathInstruct, split by Dirichlet(alpha) on the collections they are from.

    ``queries`` more questions are not trained on; the model is distilled on them, without solutions. They have at least
    ``query_length`` tokens and are cut to this length, so that no padding is distilled. The test set is GSM8K's, or
    ``test_samples`` of it. For the test, solutions of up to ``new_tokens`` tokens are generated.

    DataError if files are missing or damaged. ConfigError if transformers is not installed.
    """
    folder = Path(dir).expanduser()
    try:
        train = find(folder, ("MathInstruct", "mathinstruct"), _mathinstruct)
        test = find(folder, ("gsm8k", "gsm8k/main"), _gsm8k)
    except Absent:
        raise DataError(
            f"no data in {folder}: expected MathInstruct/ with MathInstruct.json and gsm8k/ with test.jsonl, both as "
            "they are distributed, as saved by datasets, or with train-*.parquet and test-*.parquet"
        ) from None
    tokenizer, text = load_tokenizer(folder, pretrained)
    order = [int(i) for i in generator(seed, "solutions").permutation(len(train.questions))]
    asked, rest = _queries(train, order, tokenizer, queries, query_length)
    kept, encoded = _encoded(train, rest, tokenizer, max_length, samples)
    collections = sorted({train.sources[i] for i in kept})
    labels = torch.tensor([collections.index(train.sources[i]) for i in kept])
    parts = [torch.from_numpy(p) for p in dirichlet_split(labels.numpy(), clients, alpha, seed, min_samples)]
    tested = [int(i) for i in generator(seed, "tested").permutation(len(test.questions))]
    return FederatedData(
        [Samples(encoded.x[part], encoded.y[part]) for part in parts],
        _encoded(test, tested, tokenizer, max_length, test_samples)[1],
        len(tokenizer),
        text,
        unlabelled=asked,
        score=FinalNumbers(tokenizer, new_tokens),
    )


class Writer(nn.Module):
    """A transformers model that takes tokens [batch, length] and returns logits [batch, length, vocabulary]."""

    def __init__(self, model: Foreign) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        # No mask is needed: causal attention ignores later tokens, and padding comes last.
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def generate(self, tokens: Tensor, mask: Tensor, most: int, padding: int) -> Tensor:
        """Return ``tokens`` [batch, length], padded on the left, and up to ``most`` more, each the likeliest."""
        settings = {"max_new_tokens": most, "do_sample": False, "pad_token_id": padding}
        written: Tensor = self.model.generate(input_ids=tokens, attention_mask=mask, **settings)
        return written


def writer(shape: tuple[int, ...], classes: int, pretrained: str) -> nn.Module:
    """Load the model in the folder ``pretrained``. ConfigError without transformers, DataError if it is unreadable."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise ConfigError('the model needs transformers: pip install "fastagg[nlp]"') from None
    try:
        folder = Path(pretrained).expanduser()
        return Writer(AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32))
    except Exception as error:  # torch, safetensors and transformers raise different errors
        raise DataError(f"no readable model in {pretrained}: {error}") from error


def _mathinstruct(place: Path) -> Solutions | None:
    table = read_table(place, ["MathInstruct", "train"], [[name] for name in TRAIN])
    return None if table is None else Solutions(table[1], table[2], table[0], str(place))


def _gsm8k(place: Path) -> Solutions | None:
    table = read_table(place, ["test"], [[name] for name in TEST])
    return None if table is None else Solutions(*table, [""] * len(table[0]), str(place))


def _queries(
    train: Solutions, order: list[int], tokenizer: Foreign, count: int, length: int
) -> tuple[torch.Tensor, list[int]]:
    """Return the first ``count`` questions in ``order`` that are long enough, [count, length], and the other
    numbers."""
    rows: list[list[int]] = []
    taken = set()
    for i in order:
        if len(rows) == count:
            break
        tokens = _prompt(tokenizer, train.questions[i])
        if len(tokens) >= length:
            rows.append(tokens[:length])
            taken.add(i)
    if len(rows) < count:
        raise DataError(
            f"{train.where}: {len(rows)} questions have {length} tokens (query_length), {count} are asked for"
        )
    return torch.tensor(rows), [i for i in order if i not in taken]


def _encoded(
    given: Solutions, order: list[int], tokenizer: Foreign, length: int, count: int | None
) -> tuple[list[int], Samples]:
    """Return the numbers of the first ``count`` in ``order`` (None: all) that leave room for a solution, and
    samples."""
    kept: list[int] = []
    x, y = [], []
    for i in order:
        if len(kept) == count:
            break
        prompt = _prompt(tokenizer, given.questions[i])
        answer = [*tokenizer(given.answers[i], add_special_tokens=False)["input_ids"], *_end(tokenizer)]
        if len(prompt) >= length or not answer:
            continue
        tokens = [*prompt, *answer][: length + 1]
        labels = [IGNORED] * (len(prompt) - 1) + tokens[len(prompt) :]
        tokens = tokens[: len(labels)]
        x.append(tokens + [tokenizer.pad_token_id] * (length - len(tokens)))
        y.append(labels + [IGNORED] * (length - len(labels)))
        kept.append(i)
    if not kept:
        raise DataError(f"{given.where}: no question is shorter than max_length, {length} tokens")
    return kept, Samples(torch.tensor(x), torch.tensor(y))


def _prompt(tokenizer: Foreign, question: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return list(tokenizer(f"Question: {question}\nAnswer:", add_special_tokens=False)["input_ids"])


def _end(tokenizer: Foreign) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
