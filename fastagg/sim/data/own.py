"""Checks the user's own data, which a function of a recipe returns or a program passes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastagg._types import Plain
from fastagg.errors import DataError
from fastagg.sim import functions
from fastagg.sim.data.federated import FederatedData, Samples


def load(function: Callable[..., object], name: str, clients: int, seed: int, keywords: Plain) -> FederatedData:
    """Return the data that the user's ``function`` returns. ``name`` is the function's name in the recipe. ConfigError:
    the function takes other arguments. DataError: the data is invalid, or has another number of clients."""
    where = f"the data function {name}"
    try:
        data = functions.call(function, "data.name", clients=clients, seed=seed, **keywords)
    except DataError as error:  # raised by FederatedData, which does not know the function's name
        raise DataError(f"{where}: {error}") from error
    federation = check(data, where)
    if len(federation.clients) != clients:
        raise DataError(f"{where} returned {len(federation.clients)} clients, data.clients is {clients}")
    return federation


def check(data: object, where: str) -> FederatedData:
    """Return ``data`` if clients can train on it. Otherwise raise DataError with a message that begins with ``where``.

    All inputs must have the same shape and dtype. They must be finite fp32 numbers, or tokens. There must be as many
    labels as inputs. Labels must be int64 from 0 to classes - 1 (for text any int64), or finite fp32 for ``own.loss``.
    """
    if not isinstance(data, FederatedData):
        raise DataError(f"{where}: expected a FederatedData, got a {type(data).__name__}")
    if type(data.classes) is not int or data.classes < 1:
        raise DataError(f"{where}: classes must be a whole number, at least 1, got {data.classes!r}")
    for name, samples in data.parts():
        if problem := _problem(samples, data):
            raise DataError(f"{where}: {name} has {problem}")
    return data


def _problem(samples: Samples, data: FederatedData) -> str | None:
    x, y = samples.x, samples.y
    if x.ndim < 2 or len(x) != len(y):
        return f"inputs {tuple(x.shape)} and labels {tuple(y.shape)}, expected [N, ...] and [N]"
    if tuple(x.shape[1:]) != data.shape or x.dtype != data.test.x.dtype:
        return f"inputs {x.dtype} {tuple(x.shape[1:])}, the test set has {data.test.x.dtype} {data.shape}"
    if y.dtype not in (torch.int64, torch.float32):
        return f"labels {y.dtype}, expected int64, or fp32 for a loss of your own"
    if y.dtype != data.test.y.dtype:
        return f"labels {y.dtype}, the test set has {data.test.y.dtype}"
    if x.is_floating_point() and (x.dtype != torch.float32 or not bool(torch.isfinite(x).all())):
        return f"inputs {x.dtype} that are not all finite fp32 numbers"
    if samples.augment is not None and not callable(samples.augment):
        return f"augment {samples.augment!r}, expected a function"
    if y.is_floating_point():
        return None if bool(torch.isfinite(y).all()) else "labels that are not all finite"
    if data.text is None:
        if y.ndim != 1:
            return f"labels {tuple(y.shape)}, expected [N]"
        if int(y.min()) < 0 or int(y.max()) >= data.classes:
            return f"labels from {int(y.min())} to {int(y.max())}, expected 0..{data.classes - 1}"
    return None
