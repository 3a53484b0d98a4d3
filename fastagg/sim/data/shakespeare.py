"""Shakespeare by role: predicts the next character after ``length`` characters. Every role is a client.

It reads LEAF's JSON, or plays in plain text. In plays a line "NAME:" names the speaker until the next empty line. A
role's speeches are joined with line breaks. Every position with ``length`` characters before it is a sample. The last
tenth (test_share) of the characters is for testing, so no test character is trained on. A token is the place of a
character among the files' sorted characters, plus one. Token 0 is for padding and unknown characters.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from fastagg.errors import DataError
from fastagg.sim.data import leaf
from fastagg.sim.data.federated import FederatedData, Samples, Text
from fastagg.sim.data.files import places, read_text

SPEAKER = re.compile(r"^([A-Z][^\n:]{0,60}):[ \t]*$", re.MULTILINE)


def load(
    folder: Path, clients: int, seed: int, min_samples: int = 2, test_share: float = 0.1, length: int = 80
) -> FederatedData:
    """Return ``clients`` roles. Inputs are tokens, int32 [length]; a label is the next character's token.

    DataError if there are no such files, or too few roles with ``min_samples`` samples.
    """
    found = places(folder, "shakespeare", "leaf_shakespeare")
    for place in found:
        if list(place.glob("*.json")) or list((place / "train").glob("*.json")):
            return _from_leaf(place, clients, seed, min_samples, test_share, length)
        if texts := sorted(place.glob("*.txt")):
            return _from_plays(texts, clients, seed, min_samples, test_share, length)
    raise DataError(f"{folder} has no Shakespeare: expected LEAF JSON (*.json) or plays (*.txt) there")


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


def _from_leaf(place: Path, clients: int, seed: int, min_samples: int, test_share: float, length: int) -> FederatedData:
    users, tests = leaf.read([place])
    characters: set[str] = set()
    for x, y in users.values():
        if not all(isinstance(part, str) for part in (*x, *y)):
            raise DataError(f"the LEAF JSON in {place} holds other things than text: is it Shakespeare?")
        characters.update(*x, *y)
    alphabet = Alphabet(characters)

    def convert(user: str, samples: leaf.User) -> Samples:
        x, y = samples
        if len(x) != len(y) or any(len(text) != length for text in x) or any(len(text) != 1 for text in y):
            raise DataError(f"user {user}: expected inputs of {length} characters, each with one next character")
        tokens = torch.from_numpy(alphabet.encode("".join(x)).reshape(-1, length))
        return Samples(tokens, torch.from_numpy(alphabet.encode("".join(y))).long())

    text = Text(alphabet.size)
    return leaf.federate(
        (users, tests), convert, alphabet.size, clients, seed, min_samples, test_share, in_order=True, text=text
    )


def _from_plays(
    texts: list[Path], clients: int, seed: int, min_samples: int, test_share: float, length: int
) -> FederatedData:
    spoken = roles("\n".join(read_text(path) for path in texts))
    alphabet = Alphabet(set().union(*spoken.values()))
    train: dict[str, leaf.User] = {}
    test: dict[str, leaf.User] = {}
    for name, text in spoken.items():
        tokens, cut = alphabet.encode(text), int((1 - test_share) * len(text))
        # Each of the two parts must be longer than one input. Otherwise it would have no sample.
        if min(cut, len(text) - cut) > length:
            train[name], test[name] = _windows(tokens[:cut], length), _windows(tokens[cut:], length)
    return leaf.federate(
        (train, test), lambda _, windows: Samples(*windows), alphabet.size, clients, seed, min_samples, test_share,
        text=Text(alphabet.size),
    )  # fmt: skip


def _windows(tokens: np.ndarray, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    windows = torch.from_numpy(tokens).unfold(0, length + 1, 1)
    return windows[:, :-1], windows[:, -1].long()
