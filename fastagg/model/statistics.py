"""Checks the BatchNorm statistics and counters in a client's update. Layouts call this module when they parse one.

The server takes, for example, the mean of the clients' statistics and the largest of their counters
(fastagg/server/statistics.py). So statistics must be finite and small enough for a finite mean, and counters must fit
the model's type. Variances and batch counts must not be negative: a negative variance would make the model's outputs
NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastagg import ops
from fastagg.errors import ConfigError, DTypeMismatch, NonFiniteUpdate
from fastagg.storage.pieces import Pieces

# With this limit, fp32 sums over 2**20 clients stay below 2**128, even with rounding.
_LARGEST = 2.0**107


def is_variance(name: str) -> bool:
    return name.endswith("running_var")


def is_count(name: str) -> bool:
    """Return whether an integer buffer is a number of batches."""
    return name.endswith("num_batches_tracked")


class Bounds(NamedTuple):
    """The limits for a layout's buffers and counters, each in the layout's order."""

    names: list[str]  # the names of the buffers
    limits: list[float]  # for each buffer: the largest magnitude for which the mean is finite, also in its own type
    variances: list[int]  # the places of the running variances in `names`
    limit: float  # the smallest of `limits`
    # For each counter: name, own type, whether it is a number of batches, smallest and largest value.
    counters: list[tuple[str, torch.dtype, bool, int, int]]

    @classmethod
    def of(cls, buffers: Sequence[tuple[str, str]], counters: Sequence[tuple[str, str]]) -> Bounds:
        """Return the limits for a model's arrays. An array is a pair of its name and its type's name in torch."""
        limits = [min(_LARGEST, torch.finfo(getattr(torch, dtype)).max) for _, dtype in buffers]
        variances = [i for i, (name, _) in enumerate(buffers) if is_variance(name)]
        ranges = []
        for name, own in counters:
            dtype = getattr(torch, own)
            low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
            ranges.append((name, dtype, is_count(name), low, high))
        return cls([name for name, _ in buffers], limits, variances, min(limits, default=_LARGEST), ranges)


def check_statistics(
    bounds: Bounds, buffers: Pieces | None, counters: list[Tensor] | None, what: str = "update"
) -> None:
    """Refuse buffers or counters whose mean or largest value would not be valid for the model. Values on a GPU are not
    checked, because the check would have to wait for the GPU.

    Args:
        bounds: the model's limits.
        buffers, counters: an update's statistics.
        what: the update's name in messages.

    Raises:
        NonFiniteUpdate: running statistics are not finite, or too large for their mean to be finite.
        ConfigError: a running variance or a count is below zero.
        DTypeMismatch: a counter does not fit the model's own type.
    """
    if buffers is not None and buffers.device.type == "cpu":
        # The norm is at least the largest value. A comparison with NaN is False.
        if not ops.inspect(buffers).norm <= bounds.limit:
            _refuse_large(bounds, buffers.owners, what)
        if bounds.variances and not _least([buffers.owners[i] for i in bounds.variances]) >= 0:
            for i in bounds.variances:
                if buffers.owners[i].numel() and (smallest := float(buffers.owners[i].min())) < 0:
                    raise ConfigError(
                        f"{what} {bounds.names[i]!r}: expected variances of at least 0, got {smallest:.3g}"
                    )
    if counters is None:
        return
    for (name, own, counts, smallest, largest), counter in zip(bounds.counters, counters, strict=True):
        # In the model's own type, all values of a counter are valid, except negative counts.
        if (counter.dtype is own and not counts) or not counter.is_cpu:
            continue
        low, high = _range(counter)
        if counts and low < 0:
            raise ConfigError(f"{what} {name!r}: expected a count of at least 0, got {low}")
        if low < smallest or high > largest:
            wrong = low if low < smallest else high
            raise DTypeMismatch(
                f"{what} {name!r}: expected numbers that fit {own} ({smallest}..{largest}), got {wrong}"
            )


def _refuse_large(bounds: Bounds, owners: Sequence[Tensor], what: str) -> None:
    for name, limit, owner in zip(bounds.names, bounds.limits, owners, strict=True):
        if not torch.isfinite(owner).all():
            raise NonFiniteUpdate(f"{what}: NaN or infinity in its buffers (running statistics): {name!r}")
        if owner.numel() and (peak := float(owner.abs().max())) > limit:
            raise NonFiniteUpdate(
                f"{what} {name!r}: expected buffers (running statistics) of at most {limit:.3g}, whose mean over many "
                f"clients is finite, got {peak:.3g}"
            )


def _least(owners: Sequence[Tensor]) -> float:
    # The vectors are joined first, because a call for each of a hundred short vectors would take longer.
    together = torch.cat([owner if owner.dim() == 1 else owner.reshape(-1) for owner in owners])
    return float(together.min()) if together.numel() else 0.0


def _range(counter: Tensor) -> tuple[int, int]:
    if counter.dtype is torch.int64 and counter.numel() == 1:  # the usual case, a counter of BatchNorm
        number = int(counter)
        return number, number
    if not counter.numel():
        return 0, 0
    numbers = counter.cpu().numpy()  # torch has neither minimum nor int() for unsigned types
    return int(numbers.min()), int(numbers.max())
