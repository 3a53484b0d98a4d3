"""Reading an arriving update: inspect, gather, accumulate."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from fastagg import reference
from fastagg._build import native
from fastagg.ops.checks import Update, vector
from fastagg.pieces import as_pieces


class Inspection(NamedTuple):
    """What one read of an update tells."""

    finite: bool
    norm: float  # Euclidean; not finite when the update is not


def inspect(update: Update) -> Inspection:
    """Whether every element is finite, and the Euclidean norm, in one read (4 bytes per fp32 element).

    The norm is summed in float64 in a fixed order: the same bits on any number of threads.
    """
    pieces = as_pieces(update)
    total = native.sum_squares(pieces.native) if pieces.device.type == "cpu" else reference.sum_squares(pieces)
    return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)


def gather(update: Update, out: Tensor) -> Tensor:
    """``out = update``: the pieces put together and widened to fp32 (1-D, d elements)."""
    pieces = as_pieces(update)
    vector("out", out, pieces.size, pieces.device)
    if pieces.device.type != "cpu":
        return reference.gather(pieces, out)
    native.gather(pieces.native, out.data_ptr())
    return out


def accumulate_(acc: Tensor, update: Update, weight: float = 1.0, *, fresh: bool = False) -> Tensor:
    """``acc += weight*update`` (12 bytes per parameter); with ``fresh``, ``acc = weight*update`` (8 bytes).

    FedBuff's and FADAS's buffer (paper 000, Algorithm 1, line 4).
    """
    pieces = as_pieces(update)
    vector("acc", acc, pieces.size, pieces.device)
    if pieces.device.type != "cpu":
        return reference.accumulate_(acc, pieces, weight, fresh=fresh)
    native.accumulate(pieces.native, 0 if fresh else acc.data_ptr(), weight, acc.data_ptr())
    return acc
