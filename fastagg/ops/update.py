"""Ops that read an arriving update: check that it is finite, measure it, compare it with models, add it to a sum."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import Update, address, apart, apart_from, update_of, vector
from fastagg.ops.place import CPU, on_device, place, run, where
from fastagg.storage import memory
from fastagg.storage.pieces import as_pieces


class Inspection(NamedTuple):
    """The result of :func:`inspect`."""

    finite: bool
    norm: float  # the Euclidean norm. It is NaN or infinite if the update is not finite.


def inspect(update: Update) -> Inspection:
    """Return whether every element is finite, and the Euclidean norm. The update is read once.

    Squares are summed in float64 in a fixed order, so the norm has the same bits on any number of threads."""
    pieces = as_pieces(update)
    total = native.sum_squares(update_of(pieces)) if place(pieces.device) is CPU else measure(pieces).tolist()[0]
    return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)


class Distances(NamedTuple):
    """The result of :func:`distances`. x_t is the model, x_s the version that the update Delta was trained from."""

    finite: bool  # whether the update is finite
    moved: float  # |x_t - x_s|
    norm: float  # |Delta|
    inner: float  # (x_t - x_s).Delta


def distances(update: Update, x: Tensor, base: Tensor, *, inner: bool = False) -> Distances:
    """Return both norms of AsyncFedED's staleness (Eq. 6 of its paper), and FedAC's inner product. Each of the three
    vectors is read once. Sums are in float64 in a fixed order.

    Args:
        update: d elements.
        x: the model, [d].
        base: the version that the update was trained from, [d].
        inner: whether to compute the inner product, with a third more arithmetic. If False, the inner product is 0.
    """
    pieces = as_pieces(update)
    at = {name: vector(name, tensor, pieces.size, pieces.device) for name, tensor in (("x", x), ("base", base))}
    if place(pieces.device) is CPU:
        return distances_from(native.distances(update_of(pieces), inner=inner, **at))
    norm, moved, product = measure(pieces, x=x, base=base, inner=inner).tolist()
    return distances_from((moved, norm, product))


def distances_from(sums: tuple[float, float, float]) -> Distances:
    """Return the distances. ``sums``: ``|x - base|^2``, ``|update|^2`` and ``(x - base).update``."""
    moved, norm, product = sums
    finite = math.isfinite(norm)
    return Distances(finite, math.sqrt(moved), math.sqrt(norm) if norm >= 0 else norm, product)


def measure(update: Update, *, x: Tensor | None = None, base: Tensor | None = None, inner: bool = False) -> Tensor:
    """Compute sums for an update's norm, and for the distance of two models, on a CUDA device. The host does not wait.

    The sums are in float64 in a fixed order. They have the same bits as on the CPU.

    Args:
        update: d elements, on a CUDA device.
        x, base: the current model, and the model of the version that the update was trained from, [d]. Give both or
            neither. Without them the distance and the inner product are 0.
        inner: whether to compute ``(x - base).update``, too.

    Returns:
        [3] fp64 on the device: ``|update|^2, |x - base|^2, (x - base).update``. Numbers that are not computed are 0.

    Raises:
        ConfigError: the update is not on a CUDA device.
        ShapeMismatch, DTypeMismatch: ``x`` or ``base`` is refused.
    """
    pieces = as_pieces(update)
    on = place(pieces.device)
    if on is CPU:
        raise ConfigError(f"measure: for updates on a CUDA device, got one on {pieces.device}")
    for name, tensor in (("x", x), ("base", base)):
        if tensor is not None:
            vector(name, tensor, pieces.size, pieces.device)
    if (x is None) != (base is None):
        raise ConfigError("measure: x and base belong together")
    numbers = memory.empty(3 + native.cuda.measure_scratch(pieces.size), pieces.device, torch.float64)
    sums, scratch = numbers[:3], numbers[3:]
    scratch[native.cuda.measure_counters(pieces.size) :].zero_()
    against = native.cuda.Against(x=address(x), base=address(base), inner=inner)
    there = on_device(pieces)
    native.cuda.measure(
        update_of(there), against, scratch=scratch.data_ptr(), sums=sums.data_ptr(), where=where(on)
    )  # fmt: skip
    return sums


def accumulate_(acc: Tensor, update: Update, weight: float = 1.0, *, fresh: bool = False) -> Tensor:
    """Compute ``acc += weight*update``, or, if ``fresh``, ``acc = weight*update``. Return ``acc``.

    FedBuff and FADAS add updates to their buffer like this (the FADAS paper, Algorithm 1, line 4).

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: ``acc`` is refused, or overlaps the update partly. Nothing was
            written.
    """
    pieces = as_pieces(update)
    at = vector("acc", acc, pieces.size, pieces.device)
    apart_from("acc", at, pieces)
    run(native.accumulate, pieces, {"acc": 0 if fresh else at, "weight": weight, "out": at})
    return acc


def difference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Compute ``out = a - b`` for fp32 vectors of one length, and return ``out``. Each element is rounded once."""
    pieces = as_pieces(b)
    size, device = pieces.size, pieces.device
    at, to = vector("a", a, size, device), vector("out", out, size, device)
    vector("b", b, size, device)
    apart("out", out, "a", a)
    apart("out", out, "b", b)
    run(native.accumulate, pieces, {"acc": at, "weight": -1.0, "out": to})
    return out
