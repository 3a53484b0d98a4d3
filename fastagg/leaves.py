"""Leaves. A leaf adds the updates of its own clients, without a server. Its caller passes the sum to a server or to
another leaf. Servers do not use this module."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from torch import Tensor

from fastagg import _checks, ops
from fastagg._build import native
from fastagg.errors import AlreadyCounted, ConfigError, TooSoon, UpdateTooLarge
from fastagg.model import Layout
from fastagg.ops.checks import vector
from fastagg.ops.place import run
from fastagg.rules.names import Weighting
from fastagg.server import admission
from fastagg.server.dispatch import Client, Partial, Samples
from fastagg.storage import memory
from fastagg.storage.cell import SwapCell

_LARGEST = 2.0**120  # the limit of a sum's elements in csrc/engine/direction.h
_REMEMBERED = 16_384  # a leaf remembers this many tasks, as many as a server (csrc/engine/ids.h)


class _Sum(NamedTuple):
    """The sum of a leaf, with the number and the weight of its updates."""

    folds: int = 0  # the number of additions (updates, or other leaves' sums) to this sum and the leaf's earlier sums
    updates: int = 0
    weight: float = 0.0
    bound: float = 0.0  # an upper bound on the magnitudes of the elements of `total`
    total: Tensor | None = None  # None: there is no update yet


class Leaf:
    """Adds the updates of its clients, all trained from one version, for :meth:`fastagg.Server.receive_partial`.

    The *root* is the server. It dispatches a version to the leaf, and the program that made the leaf passes the version
    on to clients. The leaf checks and clips every update as the root would. The root gets only the sum. Clients'
    running statistics are not in the sum.

    Args:
        params: the model, in any form that :class:`fastagg.Server` takes. Only names, shapes and types are used.
        clip_norm, weighting, max_samples: as in the root's :class:`fastagg.Server`, with the same values.

    Attributes:
        count: the number of updates in the current sum, including those in the sums of other leaves.

    Example:
        >>> root, leaf = fastagg.FedBuff(torch.zeros(2), buffer_size=2), fastagg.Leaf(torch.zeros(2))
        >>> task = root.dispatch("north")
        >>> for number in (1.0, 3.0):
        ...     leaf.fold(torch.full((2,), number))
        >>> receipt = root.receive_partial("north", leaf.take(), task.version)
        >>> root.flat
        tensor([2., 2.])
    """

    _sum = SwapCell[_Sum]()  # set by the native call that adds an update, so that no interrupt can come between

    def __init__(
        self,
        params: object,
        *,
        clip_norm: float | None = None,
        weighting: Weighting = "uniform",
        max_samples: float | None = None,
    ) -> None:
        _checks.fits("max_samples", max_samples, _checks.Positive | None)
        _checks.fits("clip_norm", clip_norm, _checks.Positive | None)
        _checks.fits("weighting", weighting, Weighting)
        self.layout, self.clip_norm, self.weighting = Layout.of(params), clip_norm, weighting
        self.max_samples = max_samples
        # Task -> the value of `_sum.folds` after the task's addition, oldest first. While `_sum.folds` is smaller, the
        # task has not counted.
        self._counted: dict[int | str, int] = {}
        self._clients: dict[Client, int] = {}  # client of the current sum -> `_sum.folds` after its update's addition
        self._sum = _Sum()

    @property
    def count(self) -> int:
        return self._sum.updates

    def fold(
        self, update: object, num_samples: Samples | None = None, *, task: int | str | None = None,
        client: Client | None = None,
    ) -> None:  # fmt: skip
        """Add a client's update, in one pass over memory.

        Args:
            update: as in :meth:`fastagg.Server.receive`.
            num_samples: the update's weight, as in :meth:`fastagg.Server.receive`. Not used with ``uniform``.
            client: the client that sent the update. If stated, a sum takes only one update of this client. A root whose
                rule counts clients refuses a sum if one of its clients has taken part in the step. None: not stated.
            task: an id of this client's task. An answer that is delivered twice then counts once, even across sums.
                Clients that share a root's task need ids of their own, such as ``f"{task.id}/{client}"``. The leaf
                remembers the last 16,384 ids in memory. After a restart, its sum and these ids are lost. The root still
                counts each task of a leaf once (``receive_partial(..., task=)``). None: each answer counts.

        Raises:
            AlreadyCounted: an answer to this task was added before. The sum is unchanged.
            TooSoon: the sum already has an update of this client. The sum is unchanged.
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge, ConfigError: the update is refused, as by a
                server. The sum is unchanged, and the task may be answered again.

        Example:
            >>> leaf = fastagg.Leaf(torch.zeros(2))
            >>> for delivered in (1, 2):
            ...     try:
            ...         leaf.fold(torch.ones(2), task="7/ann")
            ...     except fastagg.AlreadyCounted:
            ...         print("acknowledged again")
            acknowledged again
            >>> leaf.count
            1
        """
        self._begin(task)
        share = admission.share(num_samples, self.weighting)
        if self.max_samples is not None and self.weighting != "uniform":
            share = min(share, self.max_samples)
        self._add(update, 1, share, () if client is None else (client,))

    def fold_partial(self, partial: Partial, *, task: int | str | None = None) -> None:
        """Add another leaf's sum, in a tree of leaves.

        All updates in both leaves must be trained from the same version. The other leaf has checked and clipped each
        update, so its sum is not clipped again.

        Args:
            partial: the result of the other leaf's :meth:`take`.
            task: an id of the other leaf's task, as in :meth:`fold`.

        Raises:
            AlreadyCounted: an answer to this task was added before. This leaf's sum is unchanged.
            ShapeMismatch, DTypeMismatch, NonFiniteUpdate, UpdateTooLarge, ConfigError: the sum is refused, as by
                :meth:`fastagg.Server.receive_partial`. This leaf's sum is unchanged.

        Example:
            >>> north, oslo = fastagg.Leaf(torch.zeros(2)), fastagg.Leaf(torch.zeros(2))
            >>> oslo.fold(torch.ones(2))
            >>> north.fold_partial(oslo.take())
            >>> north.take().total
            tensor([1., 1.])
        """
        self._begin(task)
        admission.check_partial(partial, self.weighting)
        self._add(partial.total, partial.updates, partial.weight, partial.clients, is_sum=True)

    def _begin(self, task: int | str | None) -> None:
        """Refuse a task that has counted. Add a new task to `_counted`: it counts when its update is in the sum."""
        if task is not None and (isinstance(task, bool) or not isinstance(task, int | str)):
            raise ConfigError(_checks.wrong("task", "a whole number or a string", task))
        # Remove the last task if its addition was refused or interrupted.
        if self._counted and next(reversed(self._counted.values())) > self._sum.folds:
            self._counted.popitem()
        while len(self._counted) > _REMEMBERED:
            del self._counted[next(iter(self._counted))]
        if task in self._counted:
            raise AlreadyCounted(f"task {task!r}: its answer was added to a sum of this leaf already; drop this one")
        if task is not None:
            self._counted[task] = self._sum.folds + 1

    def _add(
        self, update: object, count: int, weight: float, clients: tuple[Client, ...], *, is_sum: bool = False
    ) -> None:
        while self._clients and next(reversed(self._clients.values())) > self._sum.folds:
            self._clients.popitem()
        for client in clients:
            if client in self._clients:
                raise TooSoon(f"client {client!r}: this leaf's sum has its update; take() the sum first")
        self._clients |= dict.fromkeys(clients, self._sum.folds + 1)  # valid when `_sum.folds` has this value
        parsed = self.layout.parse(update)
        seen = ops.inspect(parsed.parameters)
        if not seen.finite:
            raise admission.non_finite(self.layout, parsed)
        clips = self.clip_norm is not None and not is_sum and seen.norm > self.clip_norm
        factor = (self.clip_norm / seen.norm if clips and self.clip_norm else 1.0) * (1.0 if is_sum else weight)
        bound = self._sum.bound + factor * seen.norm
        if bound > _LARGEST:
            raise UpdateTooLarge("the update is too large: the sum of updates could leave the range of float32")
        pieces, total = parsed.parameters, self._sum.total
        fresh = total is None
        if total is None:
            total = memory.empty(self.layout.size, pieces.device)
        at, before = vector("total", total, pieces.size, pieces.device), self._sum
        after = _Sum(before.folds + 1, before.updates + count, before.weight + weight, bound, total)
        # The native call that adds also stores `after` as the leaf's sum.
        add = partial(native.engine.moving, [(self, "_sum", after)], native.accumulate)
        run(add, pieces, {"acc": 0 if fresh else at, "weight": factor, "out": at})

    def take(self) -> Partial:
        """Return the sum so far, and begin a new sum.

        Raises:
            ConfigError: there is no update yet.
        """
        held = self._sum
        if held.total is None:
            raise ConfigError("take: this leaf has no updates yet")
        clients = tuple(client for client, fold in self._clients.items() if fold <= held.folds)
        partial = Partial(held.total, held.updates, held.weight, clients)
        self._sum, self._clients = _Sum(held.folds), {}
        return partial
