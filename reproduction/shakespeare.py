"""Shakespeare by role: predicts the next character after ``length`` characters. Every role is a client.

It reads LEAF's JSON, or plays in plain text. In plays a line "NAME:" names the speaker until the next empty line. A
role's speeches are joined with line breaks. Every position with ``length`` characters before it is a sample. The last
tenth (test_share) of the characters is for testing, so no test character is trained on. A token is the place of a
character among the files' sorted characters, plus one. Token 0 is for padding and unknown characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import leaf
import numpy as np
import torch
from shared import Text, exactly, find_data
from torch import nn

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.data.files import read_text

NEEDS = "LEAF JSON (*.json, or train/ and test/) or *.txt with NAME: lines; there or in shakespeare/"
SPEAKER = re.compile(r"^([A-Z][^\n:]{0,60}):[ \t]*$", re.MULTILINE)


def load(clients: int, dir: str | None = None, test_share: float = 0.1, length: int = 80, **draw: Any) -> FederatedData:
    """Return roles (see leaf.federate). Inputs are tokens, int32 [length]; a label is the next character's token.

    DataError if there are no such files, or too few roles with enough samples.
    """
    draw["clients"] = clients

    def read(place: Path) -> FederatedData | None:
        if (found := leaf.read(place)) is not None:
            return _from_leaf(place, *found, length, test_share=test_share, **draw)
        texts = sorted(place.glob("*.txt"))
        return _from_plays(texts, length, test_share=test_share, **draw) if texts else None

    return find_data("shakespeare", dir, (".", "shakespeare", "leaf_shakespeare"), read, NEEDS)


def roles(text: str) -> dict[str, str]:
    """Return what each role says in ``text``, its speeches joined with line breaks."""
    parts = SPEAKER.split(text)[1:]
    spoken: dict[str, list[str]] = {}
    for name, speech in zip(parts[::2], parts[1::2], strict=True):
        spoken.setdefault(name, []).append(speech.strip())
    return {name: "\n".join(speeches) for name, speeches in spoken.items()}


class Alphabet:
    """Converts characters to tokens: the first of the sorted characters is 1; 0 is for padding and all others."""

    def __init__(self, characters: set[str]) -> None:
        self._tokens = {character: token for token, character in enumerate(sorted(characters), start=1)}
        self.size = len(self._tokens) + 1

    def encode(self, text: str) -> np.ndarray:
        return np.array([self._tokens.get(character, 0) for character in text], dtype=np.int32)


class NextCharacter(nn.Module):
    """Tokens [batch, length] to logits [batch, classes] of the next character.

    ``sizes``: of the embedding and of the hidden state, 8 and 256 as in McMahan et al. 2017. A label is a token, so
    there are as many tokens as classes.
    """

    def __init__(self, shape: Sequence[int], classes: int, sizes: Sequence[int] = (8, 256)) -> None:
        super().__init__()
        embedding, hidden = exactly("shakespeare:NextCharacter", sizes, 2)
        self.embedding = nn.Embedding(classes, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.output(states[:, -1])


def _from_leaf(place: Path, users: leaf.Users, tests: leaf.Users | None, length: int, **draw: Any) -> FederatedData:
    characters: set[str] = set()
    for x, y in users.values():
        if not all(isinstance(part, str) for part in (*x, *y)):
            raise DataError(f"the LEAF JSON in {place} holds other things than text: is it Shakespeare?")
        characters.update(*x, *y)
    alphabet = Alphabet(characters)

    def convert(user: str, x: Foreign, y: Foreign) -> Samples:
        if len(x) != len(y) or any(len(text) != length for text in x) or any(len(text) != 1 for text in y):
            raise DataError(f"user {user}: expected inputs of {length} characters, each with one next character")
        tokens = torch.from_numpy(alphabet.encode("".join(x)).reshape(-1, length))
        return Samples(tokens, torch.from_numpy(alphabet.encode("".join(y))).long())

    return leaf.federate(users, tests, convert, alphabet.size, in_order=True, text=Text(alphabet.size), **draw)


def _from_plays(texts: list[Path], length: int, test_share: float, **draw: Any) -> FederatedData:
    spoken = roles("\n".join(map(read_text, texts)))
    alphabet = Alphabet(set().union(*spoken.values()))
    train, test = leaf.Users(), leaf.Users()
    for name, speech in spoken.items():
        tokens, cut = torch.from_numpy(alphabet.encode(speech)), int((1 - test_share) * len(speech))
        # Each of the two parts must be longer than one input. Otherwise it would have no sample.
        if min(cut, len(tokens) - cut) > length:
            for users, part in ((train, tokens[:cut]), (test, tokens[cut:])):
                windows = part.unfold(0, length + 1, 1)
                users[name] = windows[:, :-1], windows[:, -1].long()
    return leaf.federate(
        train, test, lambda _, x, y: Samples(x, y), alphabet.size, text=Text(alphabet.size), test_share=test_share,
        **draw,
    )  # fmt: skip
