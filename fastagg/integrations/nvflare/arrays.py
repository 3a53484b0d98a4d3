"""What FLARE's filters make of a reply, in the form of the server's model again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastagg.errors import DTypeMismatch, ShapeMismatch
from fastagg.storage.pieces import as_tensor


def completed(arrays: Any, sent: Mapping[str, Tensor], whole: bool) -> tuple[dict[str, Any], list[str]]:
    """A reply with an array for each of the model's, in types that the server reads.

    FLARE's ``ExcludeVars`` takes arrays out of a reply: they count as not changed. Its privacy filters compute in
    float64 and make counters floating-point numbers: they become the model's own types again. Names that the model
    has not stay, to be refused by the server.

    Args:
        arrays: the reply's ``params``.
        sent: the model as it went out to this client.
        whole: these are trained models, else differences from ``sent``.

    Returns:
        The arrays, and the names of those that were not there.

    Raises:
        ShapeMismatch: it has none of the model's arrays.
        DTypeMismatch: an array is none, or of numbers that cannot be the model's.
    """
    if not isinstance(arrays, Mapping) or not any(name in arrays for name in sent):
        found = sorted(arrays)[:4] if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ShapeMismatch(f"a reply without any of the model's arrays: {found}")
    missing = [name for name in sent if name not in arrays]
    given = {name: _typed(name, value, sent.get(name)) for name, value in arrays.items()}
    given.update({name: sent[name] if whole else torch.zeros_like(sent[name]) for name in missing})
    return given, missing


def _typed(name: str, value: Any, sent: Tensor | None) -> Any:
    dtype = getattr(value, "dtype", None)
    if sent is None or dtype is None:
        return value
    if sent.is_floating_point():
        return as_tensor(value).to(torch.float32) if str(dtype).endswith("float64") else value
    counts = as_tensor(value)
    if not counts.is_floating_point():
        return value
    if not bool(torch.isfinite(counts).all()):
        raise DTypeMismatch(f"update {name!r}: expected whole numbers, got NaN or infinity")
    return counts.round().to(sent.dtype)


def as_sent(params: Mapping[str, Tensor], numpy: bool) -> dict[str, Any]:
    """A server's arrays as FLARE passes them on: NumPy where the model came so, and read-only then."""
    if not numpy:
        return dict(params)
    arrays = {name: value.cpu().numpy() for name, value in params.items()}
    for array in arrays.values():
        array.flags.writeable = False  # it is the server's own memory
    return arrays


def is_numpy(params: Mapping[str, Any]) -> bool:
    """Whether a model's arrays are NumPy's."""
    return isinstance(next(iter(params.values()), None), np.ndarray)
