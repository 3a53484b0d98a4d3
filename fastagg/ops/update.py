"""Reading an arriving update: inspect, gather, accumulate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg import reference
from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import Update, address, vector
from fastagg.ops.place import CPU, on_device, place
from fastagg.ops.verdict import check_verdict, judge
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
    on = place(pieces.device)
    if on is CPU:
        total = native.sum_squares(pieces.native)
    elif on is not None:
        total = judge(pieces).tolist()[0]
    else:
        total = reference.sum_squares(pieces)
    return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)


class Distances(NamedTuple):
    """What one read of an update, the model and the model it was trained from tells."""

    finite: bool  # the update
    moved: float  # |x_t - x_s|
    norm: float  # |Delta|
    inner: float  # (x_t - x_s).Delta


def distances(update: Update, x: Tensor, base: Tensor, *, inner: bool = False) -> Distances:
    """Both norms of AsyncFedED's staleness (paper 003, Eq. 6) and FedAC's inner product in one read, 12 bytes per
    parameter, summed in float64 in a fixed order.

    Args:
        update: d elements.
        x: the model, [d].
        base: the version the update was trained from, [d].
        inner: whether the inner product is wanted; it costs a third more arithmetic. Else it comes out as 0.
    """
    pieces = as_pieces(update)
    vector("x", x, pieces.size, pieces.device)
    vector("base", base, pieces.size, pieces.device)
    on = place(pieces.device)
    if on is CPU:
        moved, norm, product = native.distances(pieces.native, x.data_ptr(), base.data_ptr(), inner)
    elif on is not None:
        norm, moved, product, *_ = judge(pieces, x=x, base=base, inner=inner).tolist()
    else:
        moved, norm, product = reference.distances(pieces, x, base)
    finite = math.isfinite(norm)
    return Distances(finite, math.sqrt(moved), math.sqrt(norm) if norm >= 0 else norm, product)


def sketch(update: Update, k: int, seed: int = 0) -> Tensor:
    """A random linear map of the update to ``k`` numbers that keeps norms, in one read (4 bytes per parameter).

    ``E|sketch(u)|^2 = |u|^2`` over seeds, with relative deviation about ``sqrt(2/k)``; and it is linear, so the
    sketch of a difference is the difference of sketches.

    Args:
        update: d elements.
        k: length of the sketch, >= 1024.
        seed: of the map.

    Returns:
        [k] fp32, on the CPU.

    Raises:
        ConfigError: ``k`` is below 1024.
    """
    if k < 1024:
        raise ConfigError(f"sketch: expected at least 1024 numbers, got {k}")
    pieces = as_pieces(update)
    on = place(pieces.device)
    if on is None:
        return reference.sketch(pieces, k, seed).to(torch.float32)
    out = torch.empty(k, device=pieces.device)
    if on is CPU:
        native.sketch(pieces.native, k, seed, out.data_ptr())
    else:
        partial = torch.empty(32 * (k + 1024), device=pieces.device)
        pieces = on_device(pieces)
        native.cuda.sketch(pieces.native, k, seed, partial.data_ptr(), out.data_ptr(), *on)
    return out.cpu()


def gather(update: Update, out: Tensor) -> Tensor:
    """``out = update``: the pieces put together and widened to fp32 (1-D, d elements)."""
    pieces = as_pieces(update)
    vector("out", out, pieces.size, pieces.device)
    on = place(pieces.device)
    if on is CPU:
        native.gather(pieces.native, out.data_ptr())
    elif on is not None:
        pieces = on_device(pieces)
        native.cuda.accumulate(pieces.native, 0, 1.0, out.data_ptr(), 0, *on)
    else:
        reference.gather(pieces, out)
    return out


def accumulate_(
    acc: Tensor, update: Update, weight: float = 1.0, *, fresh: bool = False, verdict: Tensor | None = None
) -> Tensor:
    """``acc += weight*update`` (12 bytes per parameter); with ``fresh``, ``acc = weight*update`` (8 bytes).

    FedBuff's and FADAS's buffer (paper 000, Algorithm 1, line 4). ``verdict`` is as in :func:`fastagg.ops.step_`.
    """
    pieces = as_pieces(update)
    vector("acc", acc, pieces.size, pieces.device)
    check_verdict(verdict, pieces.device)
    on, before = place(pieces.device), 0 if fresh else acc.data_ptr()
    if on is CPU:
        native.accumulate(pieces.native, before, weight, acc.data_ptr())
    elif on is not None:
        pieces = on_device(pieces)
        native.cuda.accumulate(pieces.native, before, weight, acc.data_ptr(), address(verdict), *on)
    else:
        reference.accumulate_(acc, pieces, weight, fresh=fresh)
    return acc


def fold(
    models: Sequence[Update],
    bases: Sequence[Tensor | None],
    weights: Sequence[float],
    acc: Tensor | None,
    out: Tensor | None,
) -> list[bool]:
    """``out = acc + sum(weight*(model - base))``, added up in the order given: the bits of one call for each.

    4 bytes per parameter for each model, 4 for each base that is not the one before, 8 for the sum.

    Args:
        models: trained models, or differences, d elements each.
        bases: what each was trained from, [d]; None for a difference.
        weights: a factor on each difference.
        acc: the sum so far, [d]; None starts a new one.
        out: where the new sum goes, [d]; None only looks. It is ``acc`` for who has looked before, and overlaps neither
            it nor a model otherwise.

    Returns:
        For each model whether ``model - base`` is finite. If one is not, ``out`` is of no use.

    Raises:
        ShapeMismatch, DTypeMismatch, ConfigError: a vector is refused; nothing was written.
    """
    given = [as_pieces(model) for model in models]
    for k, (pieces, base) in enumerate(zip(given, bases, strict=True)):
        if base is not None:
            vector(f"base {k}", base, pieces.size, pieces.device)
        for name, given_vector in (("acc", acc), ("out", out)):
            if given_vector is not None:
                vector(name, given_vector, pieces.size, pieces.device)
    if acc is not None and out is not None and 0 < abs(acc.data_ptr() - out.data_ptr()) < out.numel() * 4:
        raise ConfigError("out overlaps acc without being acc")
    if given and given[0].device.type != "cpu":
        return reference.fold(given, bases, weights, acc, out)
    rows = [(p.native, address(base), w) for p, base, w in zip(given, bases, weights, strict=True)]
    return native.fold(rows, address(acc), address(out))


def difference(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """``out = a - b`` (1-D, the same length), each element rounded once; 12 bytes per parameter."""
    for name, given in (("a", a), ("b", b), ("out", out)):
        vector(name, given, out.numel(), out.device)
    on = place(out.device)
    if on is CPU:
        native.accumulate(as_pieces(b).native, a.data_ptr(), -1.0, out.data_ptr())
    elif on is not None:
        native.cuda.accumulate(as_pieces(b).native, a.data_ptr(), -1.0, out.data_ptr(), 0, *on)
    else:
        torch.sub(a, b, out=out)
    return out
