"""Restores replies that FLARE's filters have changed to the form of the server's model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fastagg._types import Arrays
from fastagg.errors import DTypeMismatch, ShapeMismatch
from fastagg.model import Layout
from fastagg.storage.pieces import as_tensor


def completed(
    arrays: object, sent: Mapping[str, Arrays], whole: bool, layout: Layout
) -> tuple[dict[str, Arrays], list[str]]:
    """Complete a reply: one array for each of the model's arrays, in types that the server reads.

    FLARE's ``ExcludeVars`` removes arrays from a reply; these count as unchanged. FLARE's privacy filters compute in
    float64 and turn counters into floats; these get the model's types again. Unknown names stay in the reply, and the
    server refuses them.

    Args:
        arrays: the reply's ``params``.
        sent: the model as it went out to this client.
        whole: True for a trained model, False for a difference from ``sent``.
        layout: the server's.

    Returns:
        The arrays, and the names of those that were missing.
    """
    if not isinstance(arrays, Mapping) or not any(name in arrays for name in sent):
        found = sorted(arrays)[:4] if isinstance(arrays, Mapping) else type(arrays).__name__
        raise ShapeMismatch(f"a reply without any of the model's arrays: {found}")
    types = {entry.name: getattr(torch, entry.dtype) for entry in layout.entries}
    missing = [name for name in sent if name not in arrays]
    given = {name: _typed(name, _loaded(value), types.get(name)) for name, value in arrays.items()}
    for name in missing:
        given[name] = sent[name] if whole else torch.zeros_like(as_tensor(sent[name]))
    return given, missing


def _loaded(value: Arrays) -> Arrays:
    """An array that FLARE has put on the disk (``enable_tensor_disk_offload``), or the array itself."""
    load = getattr(value, "materialize", None)
    return load() if callable(load) else value


def _typed(name: str, value: Arrays, own: torch.dtype | None) -> Arrays:
    dtype = getattr(value, "dtype", None)
    if own is None or dtype is None:
        return value
    if own.is_floating_point:
        return as_tensor(value).to(torch.float32) if str(dtype).endswith("float64") else value
    counts = as_tensor(value)
    if not counts.is_floating_point():
        return value
    if not bool(torch.isfinite(counts).all()):
        raise DTypeMismatch(f"update {name!r}: expected whole numbers, got NaN or infinity")
    return counts.round().to(own)
