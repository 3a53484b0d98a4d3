"""Sums of whole numbers: any order, split and tree of the same terms gives the same bits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg._build import native
from fastagg.errors import ConfigError
from fastagg.ops.checks import Update, apart_from, update_of
from fastagg.storage import memory
from fastagg.storage.pieces import as_pieces

_CPU = torch.device("cpu")
_BLOCK = native.block


def exact_unit(largest: float) -> float:
    """The unit of exact sums whose terms have a Euclidean norm of at most ``largest``: the power of two of which a
    term's elements are at most 2^30."""
    return 2.0 ** (math.frexp(largest)[1] - 30)


class ExactSum(NamedTuple):
    """A sum of whole numbers, on the CPU: 4 bytes a parameter, and 4 more where these do not suffice.

    Attributes:
        low, high: the lower and the upper halves, int32 [d].
        marks: uint8, one for each 1,024 elements: 1 if the upper halves count, 2 if the lower ones are nearly full.
    """

    low: Tensor
    high: Tensor
    marks: Tensor

    @classmethod
    def of(cls, size: int) -> ExactSum:
        """Return memory for a sum of ``size`` elements. It has no value until something was added with ``fresh``."""
        low, high = (memory.empty(size, _CPU).view(torch.int32) for _ in range(2))
        return cls(low, high, memory.zeros(-(-size // _BLOCK), dtype=torch.uint8))

    @property
    def native(self) -> tuple[int, int, int]:
        return self.low.data_ptr(), self.high.data_ptr(), self.marks.data_ptr()


def accumulate_exact_(total: ExactSum, update: Update, weight: float = 1.0, *, fresh: bool = False) -> ExactSum:
    """``total += round(weight*update)`` (12 bytes per parameter, as :func:`accumulate_`); with ``fresh``, ``=``.

    The product is rounded to fp32 and then to the nearest whole number, ties to even. Its magnitude must be at most
    2^30: the caller knows it from the update's norm. A sum may have 2^24 terms.

    Raises:
        ConfigError: ``total`` is of another size, or the update is not on the CPU, or overlaps it. Nothing was written.
    """
    pieces = as_pieces(update)
    if pieces.device != _CPU or pieces.size != total.low.numel():
        raise ConfigError(
            f"accumulate_exact_: expected {total.low.numel()} numbers on the CPU, got {pieces.size} on {pieces.device}"
        )
    for name, half in (("total.low", total.low), ("total.high", total.high)):
        apart_from(name, half.data_ptr(), pieces, same=False)
    native.accumulate_exact(update_of(pieces), total=total.native, fresh=fresh, weight=weight)
    return total


def add_exact_(total: ExactSum, terms: Tensor, *, fresh: bool = False) -> ExactSum:
    """``total += terms``, int64 [d] (24 bytes per parameter); with ``fresh``, ``total = terms``.

    Raises:
        ConfigError: ``terms`` is no such vector. Nothing was written.
    """
    whole_numbers("terms", terms, total.low.numel())
    native.add_exact(terms.data_ptr(), terms.numel(), total=total.native, fresh=fresh)
    return total


def read_exact(total: ExactSum) -> Tensor:
    """The sum as int64 [d]."""
    out = memory.empty(total.low.numel(), dtype=torch.int64)
    native.read_exact(total.native, out.numel(), out=out.data_ptr())
    return out


def exact_norm(terms: Tensor) -> tuple[float, int]:
    """The Euclidean norm of int64 [d], and its largest magnitude, in one read."""
    found: tuple[float, int] = native.exact_norm(whole_numbers("terms", terms, terms.numel()).data_ptr(), terms.numel())
    return found


def whole_numbers(name: str, given: object, size: int) -> Tensor:
    """Return ``given`` if it is int64 [size] in memory of the CPU."""
    if (
        isinstance(given, Tensor) and given.dtype is torch.int64 and given.shape == (size,) and given.is_cpu
        and given.is_contiguous() and given.untyped_storage().nbytes() >= 8 * (given.storage_offset() + size)
    ):  # fmt: skip
        return given
    raise ConfigError(f"{name}: expected int64 [{size}] on the CPU, got {given!r:.100}")
