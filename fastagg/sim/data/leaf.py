"""LEAF's JSON, the usual form of data that belongs to users: FEMNIST, Shakespeare.

    {"users": ["f_00000", ...], "num_samples": [8, ...], "user_data": {"f_00000": {"x": [...], "y": [...]}}}

in one or more files. If there are folders train/ and test/, this division is used. Otherwise a random share of every
user's samples is kept for testing, as AsyncFedED does (10%).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples, Text
from fastagg.sim.data.files import places, read_text
from fastagg.sim.seeds import generator

User = tuple[Foreign, Foreign]  # x and y
Convert = Callable[[str, User], Samples]


def load_femnist(folder: Path, clients: int, seed: int, min_samples: int, test_share: float) -> FederatedData:
    """Return ``clients`` writers of FEMNIST, inputs [1, 28, 28] as in LEAF (1 is white), 62 classes."""
    return federate(
        read(places(folder, "femnist")), vectors((1, 28, 28), 62), 62, clients, seed, min_samples, test_share
    )


def read(folders: list[Path]) -> tuple[dict[str, User], dict[str, User] | None]:
    """Read the first of ``folders`` that has JSON files. Return the users' samples, and their test samples if separate.

    DataError if there is no such file, or one is not LEAF's JSON.
    """
    for folder in folders:
        if list((folder / "train").glob("*.json")) and list((folder / "test").glob("*.json")):
            return _read_all(folder / "train"), _read_all(folder / "test")
        if list(folder.glob("*.json")):
            return _read_all(folder), None
    raise DataError(f"{folders[0]} has no LEAF JSON: expected *.json, or train/*.json and test/*.json")


def vectors(shape: tuple[int, ...], classes: int) -> Convert:
    """Return a function that converts lists of numbers to fp32 inputs of ``shape`` and labels 0..classes-1."""

    def convert(user: str, samples: User) -> Samples:
        try:
            x = np.array(samples[0], dtype=np.float32).reshape(-1, *shape)
            y = np.array(samples[1], dtype=np.float64).reshape(-1)
        except (ValueError, TypeError) as error:
            raise DataError(f"user {user}: x is not a list of inputs of shape {shape}: {error}") from None
        if len(x) != len(y) or not np.isfinite(x).all():
            raise DataError(f"user {user}: {len(x)} inputs and {len(y)} labels, expected as many finite ones of each")
        if len(y) and (y.min() < 0 or y.max() >= classes or (y != y.astype(np.int64)).any()):
            raise DataError(f"user {user}: labels must be 0..{classes - 1}, got {y.min():g} to {y.max():g}")
        return Samples(torch.from_numpy(x), torch.from_numpy(y.astype(np.int64)))

    return convert


def federate(
    read: tuple[dict[str, User], dict[str, User] | None], convert: Convert, classes: int, clients: int, seed: int,
    min_samples: int, test_share: float, *, in_order: bool = False, text: Text | None = None,
) -> FederatedData:  # fmt: skip
    """Draw ``clients`` users with at least ``min_samples`` for training. All their test samples form the test set.

    in_order: each user's last samples are the test samples, not random ones (for text, whose neighbours overlap).
    DataError if there are too few such users.
    """
    users, tests = read
    train_share = 1.0 if tests is not None else 1.0 - test_share
    enough = sorted(user for user, (_, y) in users.items() if int(train_share * len(y)) >= min_samples)
    if len(enough) < clients:
        raise DataError(
            f"{clients} clients are asked for, but only {len(enough)} of {len(users)} users "
            f"have {min_samples} samples or more to train on"
        )
    drawn = generator(seed, "users").permutation(len(enough))[:clients]
    train, test = [], []
    for user in (enough[i] for i in drawn):
        samples = convert(user, users[user])
        if tests is not None:
            train.append(samples)
            if user in tests:
                test.append(convert(user, tests[user]))
            continue
        count = len(samples)
        order = np.arange(count) if in_order else generator(seed, "test-split", len(train)).permutation(count)
        cut = int(train_share * count)
        first, rest = torch.from_numpy(order[:cut]), torch.from_numpy(order[cut:])
        train.append(Samples(samples.x[first], samples.y[first]))
        test.append(Samples(samples.x[rest], samples.y[rest]))
    if not test:
        raise DataError("none of the users drawn has test samples")
    return FederatedData(train, Samples(torch.cat([s.x for s in test]), torch.cat([s.y for s in test])), classes, text)


def _read_all(folder: Path) -> dict[str, User]:
    users: dict[str, User] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(read_text(path))["user_data"]
            users |= {user: (list(samples["x"]), list(samples["y"])) for user, samples in data.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is not LEAF's JSON, user_data with x and y for each user: {error!r}") from None
    return users
