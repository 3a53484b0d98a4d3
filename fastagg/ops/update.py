"""Reading an arriving update: inspect, compare, accumulate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError, DeviceError, ShapeMismatch
from fastagg.ops.checks import Update, address, apart, apart_from, update_of, vector
from fastagg.ops.place import CPU, place, run
from fastagg.ops.verdict import judge
from fastagg.storage.pieces import as_pieces


class Inspection(NamedTuple):
    """The result of one read of an update."""

    finite: bool
    norm: float  # Euclidean; not finite if the update is not finite


def inspect(update: Update) -> Inspection:
    """Whether every element is finite, and the Euclidean norm, in one read (4 bytes per fp32 element).

    The norm is summed in float64 in a fixed order. So it has the same bits on any number of threads.
    """
    pieces = as_pieces(update)
    total = native.sum_squares(update_of(pieces)) if place(pieces.device) is CPU else judge(pieces).tolist()[0]
    return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)


class Distances(NamedTuple):
    """The result of one read of an update, the model, and the model that it was trained from."""

    finite: bool  # the update
    moved: float  # |x_t - x_s|
    norm: float  # |Delta|
    inner: float  # (x_t - x_s).Delta


def distances(update: Update, x: Tensor, base: Tensor, *, inner: bool = False) -> Distances:
    """Both norms of AsyncFedED's staleness (its Eq. 6) and FedAC's inner product, in one read.

    It takes 12 bytes per parameter. Sums are in float64 in a fixed order.

    Args:
        update: d elements.
        x: the model, [d].
        base: the version the update was trained from, [d].
        inner: whether to compute the inner product, for a third more arithmetic. Otherwise it is 0.
    """
    pieces = as_pieces(update)
    at = {name: vector(name, given, pieces.size, pieces.device) for name, given in (("x", x), ("base", base))}
    if place(pieces.device) is CPU:
        return distances_from(native.distances(update_of(pieces), inner=inner, **at))
    norm, moved, product, *_ = judge(pieces, x=x, base=base, inner=inner).tolist()
    return distances_from((moved, norm, product))


def distances_from(sums: tuple[float, float, float]) -> Distances:
    """Return the distances from ``|x - base|^2``, ``|update|^2`` and the inner product of both."""
    moved, norm, product = sums
    finite = math.isfinite(norm)
    return Distances(finite, math.sqrt(moved), math.sqrt(norm) if norm >= 0 else norm, product)


def accumulate_(
    acc: Tensor, update: Update, weight: float = 1.0, *, fresh: bool = False, verdict: Tensor | None = None
) -> Tensor:
    """``acc += weight*update`` (12 bytes per parameter); with ``fresh``, ``acc = weight*update`` (8 bytes).

    FedBuff's and FADAS's buffer (the FADAS paper, Algorithm 1, line 4). ``verdict`` is as in :func:`fastagg.ops.step_`.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: ``acc`` is refused, or overlaps the update partly. Nothing was
            written.
    """
    pieces = as_pieces(update)
    at = vector("acc", acc, pieces.size, pieces.device)
    apart_from("acc", at, pieces)
    run(native.accumulate, pieces, verdict, {"acc": 0 if fresh else at, "weight": weight, "out": at})
    return acc


def fold(
    models: Sequence[Update],
    bases: Sequence[Tensor | None],
    weights: Sequence[float],
    acc: Tensor | None,
    out: Tensor | None,
) -> list[bool]:
    """``out = acc + sum(weight*(model - base))``, added in the given order. The bits equal those of one call for each.

    It takes 4 bytes per parameter for each model, 4 for each base that differs from the previous one, 8 for the sum.

    Args:
        models: trained models, or differences, d elements each.
        bases: the model that each was trained from, [d]. None for a difference.
        weights: a factor for each difference.
        acc: the sum so far, [d]. None starts a new sum.
        out: output for the new sum, [d]. None only checks. It may be ``acc`` if the models were checked before.
            Otherwise it must overlap neither ``acc`` nor a model.

    Returns:
        For each model whether ``model - base`` is finite. If one is not, the contents of ``out`` are undefined.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: a vector is refused. Nothing was written.
    """
    given = [as_pieces(model) for model in models]
    if not given:
        raise ConfigError("fold: there is no model")
    if not len(given) == len(bases) == len(weights):
        raise ShapeMismatch(f"fold: {len(given)} models, {len(bases)} bases and {len(weights)} weights")
    for k, (pieces, base) in enumerate(zip(given, bases, strict=True)):
        if pieces.size != given[0].size or pieces.device != given[0].device:
            raise ShapeMismatch(f"model {k} has {pieces.size} elements, model 0 has {given[0].size}")
        if base is not None:
            vector(f"base {k}", base, pieces.size, pieces.device)
        for name, given_vector in (("acc", acc), ("out", out)):
            if given_vector is not None:
                vector(name, given_vector, pieces.size, pieces.device)
    if acc is not None and out is not None:
        apart("out", out, "acc", acc)
    if given[0].device.type != "cpu":
        raise DeviceError(f"fold: for models on the CPU, got one on {given[0].device}; move it there")
    rows = [(update_of(p), address(base), w) for p, base, w in zip(given, bases, weights, strict=True)]
    return native.fold(rows, acc=address(acc), out=address(out))


def difference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """``out = a - b`` (1-D, the same length), each element rounded once; 12 bytes per parameter."""
    pieces = as_pieces(b)
    size, device = pieces.size, pieces.device
    at, to = vector("a", a, size, device), vector("out", out, size, device)
    vector("b", b, size, device)
    apart("out", out, "a", a)
    apart("out", out, "b", b)
    run(native.accumulate, pieces, None, {"acc": at, "weight": -1.0, "out": to})
    return out
