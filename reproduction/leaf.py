"""LEAF's JSON, the usual form of data that belongs to users; FEMNIST, and AsyncFedED's network for it.

    {"users": ["f_00000", ...], "num_samples": [8, ...], "user_data": {"f_00000": {"x": [...], "y": [...]}}}

in one or more files. If there are folders train/ and test/, this division is used. Otherwise a random share of every
user's samples is kept for testing, as AsyncFedED does (10%).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import Text, exactly, find_data
from torch import nn

from fastagg._types import Foreign
from fastagg.errors import DataError
from fastagg.sim.data.federated import FederatedData, Samples
from fastagg.sim.data.files import read_text
from fastagg.sim.models import image_shape
from fastagg.sim.seeds import generator

Users = dict[str, tuple[Foreign, Foreign]]  # x and y of each user
Convert = Callable[[str, Foreign, Foreign], Samples]  # of a user's name, x and y

SHAPE, CLASSES = (1, 28, 28), 62  # of FEMNIST


NEEDS = "LEAF JSON: *.json, or train/*.json and test/*.json; there or in femnist/"


def femnist(clients: int, seed: int, dir: str | None = None, **draw: Any) -> FederatedData:
    """Return writers of FEMNIST (see :func:`federate`), inputs [1, 28, 28] as in LEAF (1 is white), 62 classes."""
    users, tests = find_data("femnist", dir, (".", "femnist"), read, NEEDS)
    return federate(users, tests, _image, CLASSES, clients=clients, seed=seed, **draw)


def cnn(shape: Sequence[int], classes: int, channels: Sequence[int] = (32, 64)) -> nn.Module:
    """Two 3x3 convolutions, one 2x2 max-pooling, one linear layer: AsyncFedED's network for FEMNIST (B.1).

    The paper gives the layers but not their sizes. The channels were chosen here.
    """
    depth, height, width = image_shape("leaf:cnn", shape)
    first, second = exactly("leaf:cnn", channels, 2)
    return nn.Sequential(
        nn.Conv2d(depth, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (height // 2) * (width // 2), classes),
    )


def read(place: Path) -> tuple[Users, Users | None] | None:
    """Return the users' samples, and their test samples if separate; None if the folder has no JSON files.

    DataError if one is not LEAF's JSON.
    """
    train, test = (_read(place / part) for part in ("train", "test"))
    if train and test:
        return train, test
    whole = _read(place)
    return None if whole is None else (whole, None)


def _read(folder: Path) -> Users | None:
    users: Users = {}
    paths = sorted(folder.glob("*.json"))
    for path in paths:
        text = read_text(path)
        try:
            found = json.loads(text)["user_data"].items()
            users |= {user: (list(samples["x"]), list(samples["y"])) for user, samples in found}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} is not LEAF's JSON, user_data with x and y for each user: {error!r}") from None
    return users if paths else None


def _image(user: str, x: Foreign, y: Foreign) -> Samples:
    try:
        images = np.array(x, dtype=np.float32).reshape(-1, *SHAPE)
        labels = np.array(y, dtype=np.float64).reshape(-1)
    except (ValueError, TypeError) as error:
        raise DataError(f"user {user}: x is not a list of inputs of shape {SHAPE}: {error}") from None
    if len(images) != len(labels) or not np.isfinite(images).all():
        raise DataError(f"user {user}: {len(images)} inputs and {len(labels)} labels, expected as many finite ones")
    if not np.isin(labels, range(CLASSES)).all():
        raise DataError(f"user {user}: labels must be 0..{CLASSES - 1}, got {labels.min():g} to {labels.max():g}")
    return Samples(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def federate(
    users: Users, tests: Users | None, convert: Convert, classes: int, *, clients: int, seed: int, min_samples: int = 2,
    test_share: float = 0.1, in_order: bool = False, text: Text | None = None,
) -> FederatedData:  # fmt: skip
    """Draw ``clients`` users with at least ``min_samples`` for training. All their test samples form the test set.

    in_order: each user's last samples are the test samples, not random ones (for text, whose neighbours overlap).
    DataError if there are too few such users.
    """
    train_share = 1.0 if tests is not None else 1.0 - test_share
    enough = sorted(user for user, (_, y) in users.items() if int(train_share * len(y)) >= min_samples)
    if len(enough) < clients:
        raise DataError(
            f"{clients} clients are asked for, but only {len(enough)} of {len(users)} users "
            f"have {min_samples} samples or more to train on"
        )
    train, test = [], []
    for number, drawn in enumerate(generator(seed, "users").permutation(len(enough))[:clients]):
        user = enough[drawn]
        samples = convert(user, *users[user])
        if tests is None:
            count = len(samples)
            order = np.arange(count) if in_order else generator(seed, "test-split", number).permutation(count)
            kept, held = torch.from_numpy(order).tensor_split([int(train_share * count)])
            test.append(samples.part(held))
            samples = samples.part(kept)
        elif user in tests:
            test.append(convert(user, *tests[user]))
        train.append(samples)
    if not test:
        raise DataError("none of the users drawn has test samples")
    return FederatedData(train, Samples(torch.cat([s.x for s in test]), torch.cat([s.y for s in test])), classes, text)
