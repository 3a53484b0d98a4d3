"""Encodes a client's reply before it is sent. The encoders for Flower and FLARE call this module on the clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

import torch

from fastagg import _checks
from fastagg._types import Arrays, Format
from fastagg.encoding import Encoded, ErrorFeedback, TopK, encode
from fastagg.encoding.encode import UNBIASED
from fastagg.errors import ConfigError
from fastagg.model import Layout
from fastagg.storage.pieces import as_tensor


def format_of(name: Format | TopK | str, **topk: Any) -> tuple[Format | TopK, ErrorFeedback | None]:
    """Return the format with this name, and a new :class:`fastagg.ErrorFeedback` if the format is biased, or None.

    Args:
        topk: the settings of :class:`fastagg.TopK`. They have an effect only if ``name`` is ``topk``.

    Raises:
        ConfigError: there is no such format, or a setting is out of range.
    """
    if isinstance(name, str):
        name = TopK(**topk) if name == "topk" and topk else cast(Format, _checks.fits("format", name, Format))
    elif not isinstance(name, TopK):
        raise ConfigError(_checks.wrong("format", f"one of {', '.join(map(repr, get_args(Format)))} or a TopK", name))
    return name, None if name in UNBIASED else ErrorFeedback()


def encoded(
    arrays: Mapping[str, Arrays], kind: str, sent: Mapping[str, Arrays], format: Format | TopK, *, seed: int,
    feedback: ErrorFeedback | None,
) -> Encoded:  # fmt: skip
    """Return an encoded reply with arrays in the order of ``sent``. A model is encoded as its difference from ``sent``.

    Args:
        kind: the reply's kind, one of :data:`fastagg.integrations.replies.KINDS`.
        sent: the model that the client was sent.
        seed, feedback: as in :func:`fastagg.encode`.

    Raises:
        ConfigError: the kind cannot be encoded, or the model has running statistics, which no format can hold.
        ShapeMismatch, DTypeMismatch, NonFiniteUpdate: the reply does not fit the model. ``feedback`` has not changed.
    """
    start = {name: as_tensor(array) for name, array in sent.items()}
    update: Arrays = {name: as_tensor(array) for name, array in arrays.items()}
    layout = Layout.of(start)
    if layout.has_buffers:
        raise ConfigError("an encoded update holds no running statistics, and this model has some: send it as it is")
    if kind == "model":
        update = layout.difference(update, layout.take(start, torch.device("cpu")).flat)
    elif kind not in ("difference", "delta", "gradient"):
        raise ConfigError(f"a reply of kind {kind!r} cannot be encoded")
    layout.parse(update)
    return encode({name: update[name] for name in start}, format, seed=seed, feedback=feedback)
