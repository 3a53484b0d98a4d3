"""Norms of whole vectors of which every rank has a slice. They have the same bits as on one process.

A norm is a sum over groups of 65,536 elements (csrc/math/reduce.h). Slices consist of whole groups. So each rank has
some of the groups' sums, from its processor or its card, and rank 0 adds all of them in the fixed order.
"""

from __future__ import annotations

import math
import struct

import numpy as np
from torch import Tensor

from fastagg._build import native
from fastagg.ops import Distances, Inspection, Update
from fastagg.ops.verdict import group_sums
from fastagg.shards.link import Link


class Norms:
    """:func:`fastagg.ops.inspect` and :func:`fastagg.ops.distances` of the whole vector. All ranks must call it
    together.

    Attributes:
        link: the link to the other ranks.
        joined: whether the other ranks are asked. Each rank uses only its slice until all have the same settings.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.joined = False

    def inspect(self, update: Update) -> Inspection:
        """Return whether every element of the whole vector is finite, and its Euclidean norm."""
        (total,) = self._totals(group_sums(update))
        return Inspection(math.isfinite(total), math.sqrt(total) if total >= 0 else total)

    def distances(self, update: Update, x: Tensor, base: Tensor, *, inner: bool = False) -> Distances:
        """Return the same as :func:`fastagg.ops.distances`, for the whole vector."""
        norm, moved, *product = self._totals(group_sums(update, x, base, inner=inner))
        root = math.sqrt(norm) if norm >= 0 else norm
        return Distances(math.isfinite(norm), math.sqrt(moved), root, product[0] if product else 0.0)

    def largest(self, mine: float) -> float:
        """Return the largest of all ranks' numbers."""
        if not self.joined:
            return mine
        found = self.link.settle(
            struct.pack("<d", mine), lambda all: max(all, key=lambda one: struct.unpack("<d", one))
        )
        return float(struct.unpack("<d", found)[0])

    def agree(self) -> None:
        """Make sure that all ranks have planned their step. Otherwise none makes it."""
        if self.joined:
            self.link.agree()

    def _totals(self, sums: np.ndarray) -> list[float]:
        if not self.joined:
            return [native.total(row) for row in sums]
        kinds = len(sums)

        def combine(all: list[bytes]) -> bytes:
            parts = [np.frombuffer(one, np.float64).reshape(kinds, -1) for one in all]
            whole = np.concatenate(parts, axis=1)
            return np.array([native.total(row) for row in whole]).tobytes()

        return [float(total) for total in np.frombuffer(self.link.settle(sums.tobytes(), combine), np.float64)]
