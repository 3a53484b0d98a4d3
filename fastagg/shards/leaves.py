"""Leaves: processes that each add up the updates of their own clients and pass on one sum."""

from __future__ import annotations

from torch import Tensor

from fastagg import _checks, ops
from fastagg.errors import ConfigError, UpdateTooLarge
from fastagg.model import Layout
from fastagg.rules.names import Weighting, words
from fastagg.server import admission
from fastagg.server.dispatch import Partial
from fastagg.storage import memory

_LARGEST = 2.0**120  # the limit of a sum's elements, as in csrc/engine/direction.h


class Leaf:
    """Adds the updates of its clients, all trained from one version, for :meth:`fastagg.Server.receive_partial`.

    It needs no server. The root dispatches a version to the leaf, and the leaf passes it on to its clients. A leaf
    checks and clips every update as the server would. The root sees only their sum. Running statistics are not passed
    on.

    Args:
        params: the model, in any form that :class:`fastagg.Server` takes. Only its shapes are used.
        clip_norm, weighting: the same as for the root's :class:`fastagg.Server`.

    Attributes:
        count: the number of updates so far, those in sums of other leaves included.

    Example:
        >>> root, leaf = fastagg.FedBuff(torch.zeros(2), buffer_size=2), fastagg.Leaf(torch.zeros(2))
        >>> task = root.dispatch("north")
        >>> for number in (1.0, 3.0):
        ...     leaf.fold(torch.full((2,), number))
        >>> receipt = root.receive_partial("north", leaf.take(), task.version)
        >>> root.flat
        tensor([2., 2.])
    """

    def __init__(self, params: object, *, clip_norm: float | None = None, weighting: Weighting = "uniform") -> None:
        if clip_norm is not None:
            _checks.number("clip_norm", clip_norm, above=0)
        _checks.one_of("weighting", weighting, words(Weighting))
        self.layout, self.clip_norm, self.weighting = Layout.of(params), clip_norm, weighting
        self._begin()

    def _begin(self) -> None:
        self.count, self._weight, self._bound = 0, 0.0, 0.0
        self._total: Tensor | None = None

    def fold(self, update: object, num_samples: float | None = None) -> None:
        """Add a client's update, in one pass over memory.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge, ConfigError: the update is refused, as by a
                server. The sum is unchanged.
        """
        self._add(update, 1, admission.share(num_samples, self.weighting))

    def fold_partial(self, partial: Partial) -> None:
        """Add another leaf's sum: this leaf is then one of a second or further level.

        All updates of all sums come from the version that the root sent. The sum was checked and clipped update by
        update where it was made, and is not clipped again.

        Raises:
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge, ConfigError: the sum is refused, as by
                :meth:`fastagg.Server.receive_partial`. This leaf's sum is unchanged.

        Example:
            >>> north, oslo = fastagg.Leaf(torch.zeros(2)), fastagg.Leaf(torch.zeros(2))
            >>> oslo.fold(torch.ones(2))
            >>> north.fold_partial(oslo.take())
            >>> north.take()
            Partial(total=tensor([1., 1.]), updates=1, weight=1.0)
        """
        admission.check_partial(partial, self.weighting)
        self._add(partial.total, partial.updates, partial.weight, is_sum=True)

    def _add(self, update: object, count: int, weight: float, *, is_sum: bool = False) -> None:
        parsed = self.layout.parse(update)
        seen = ops.inspect(parsed.parameters)
        admission.refuse_non_finite(self.layout, parsed, seen.finite)
        clips = self.clip_norm is not None and not is_sum and seen.norm > self.clip_norm
        factor = (self.clip_norm / seen.norm if clips and self.clip_norm else 1.0) * (1.0 if is_sum else weight)
        bound = self._bound + factor * seen.norm
        if bound > _LARGEST:
            raise UpdateTooLarge("the update is too large: the sum of updates could leave the range of float32")
        total = memory.empty(self.layout.size, parsed.parameters.device) if self._total is None else self._total
        ops.accumulate_(total, parsed.parameters, factor, fresh=self._total is None)
        self._total, self._bound = total, bound
        self._weight += weight
        self.count += count

    def take(self) -> Partial:
        """Return the sum so far. The leaf begins a new sum.

        Raises:
            ConfigError: there is no update yet.
        """
        if self._total is None:
            raise ConfigError("take: this leaf has no updates yet")
        found = Partial(self._total, self.count, self._weight)
        self._begin()
        return found
