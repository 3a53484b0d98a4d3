"""A direction that combines a step's updates by a rule that tolerates a few arbitrary updates. Servers call it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg._checks import Count, NotNegative, SettingRule
from fastagg.errors import ConfigError
from fastagg.ops.combine import (
    COMPARING,
    DEFAULTS,
    MOST,
    Faults,
    Iterations,
    Keep,
    Radius,
    RobustRule,
    RobustSettings,
    Smoothing,
    Trim,
    robust_of,
)
from fastagg.rules.directions.base import Direction, DirectionState, Material
from fastagg.rules.directions.buffer import check_window
from fastagg.rules.staleness import Staleness

_FARTHEST = 10.0  # the largest distance of a client's statistic from the median, as a multiple of the median distance


@dataclass(frozen=True)
class Robust(Direction):
    """``D = rule(s(tau_1)*Delta_1, ..., s(tau_M)*Delta_M)``. A few of the M clients in a step may send anything.

    By default each client has at most one answer in a step, and a second answer raises TooSoon (``answers_per_step``).

    The server keeps all updates of a round, which takes M times the memory of an update, and combines them in the pass
    of the step. An update's weight depends only on its staleness, because a client could lie about its number of
    samples. The rule also combines running statistics (:meth:`statistics`).

    Args:
        rule: ``median``, ``trimmed``, ``mean_around_median``, ``krum``, ``multi_krum``, ``geometric_median`` or
            ``centered_clip``. :func:`fastagg.ops.combine` defines these rules and their settings ``trim``, ``f``,
            ``keep``, ``radius``, ``iterations`` and ``smoothing``.
        size: M, updates per step, 1..1,024. None: all updates that arrive until :meth:`fastagg.Server.close_round`.
        synchronous: whether all updates of a step must be trained from the current version, as with :class:`Cohort`.
        at_least, grace: as in :class:`Buffer`.

    Raises:
        ConfigError: a setting is out of range, or the rule does not work with M (or ``at_least``) updates.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Robust("median", 3))
        >>> for client, number in (("ann", 1.0), ("bob", 2.0), ("eve", -1e9)):
        ...     task = server.dispatch(client)
        ...     receipt = server.receive(client, torch.tensor([number]))
        >>> server.flat
        tensor([1.])
    """

    rule: RobustRule
    size: Annotated[int, SettingRule(least=1, most=MOST, name="buffer_size")] | None = 10
    trim: Trim = field(default=DEFAULTS["trim"], kw_only=True)
    f: Faults = field(default=DEFAULTS["f"], kw_only=True)
    keep: Keep = field(default=DEFAULTS["keep"], kw_only=True)
    radius: Radius = field(default=DEFAULTS["radius"], kw_only=True)
    iterations: Iterations = field(default=DEFAULTS["iterations"], kw_only=True)
    smoothing: Smoothing = field(default=DEFAULTS["smoothing"], kw_only=True)
    synchronous: bool = field(default=False, kw_only=True)  # type: ignore[misc]  # elsewhere a ClassVar
    at_least: Count | None = field(default=None, kw_only=True)
    grace: NotNegative | None = field(default=None, kw_only=True)
    buffered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("Robust('median', 100", self.size, self.at_least, self.grace)
        robust_of(self.rule, self.size if self.at_least is None else self.at_least, self._rule())

    @property
    def counts_clients(self) -> bool:
        return True

    @property
    def compares(self) -> bool:
        return self.rule in COMPARING

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        if weighting != "uniform":
            raise ConfigError("weighting: a number of samples could be a lie, and with Robust updates count 'uniform'")

    def _rule(self) -> RobustSettings:
        return {name: getattr(self, name) for name in DEFAULTS}  # type: ignore[return-value]

    def statistics(self, rows: Sequence[Tensor], own: Tensor, shares: Sequence[float]) -> Tensor:
        """Return the running statistics after a step, from the statistics of the step's clients.

        A rule that combines updates element by element combines statistics in the same way. A rule that compares whole
        updates gives each client's statistics the weight of the client's update. Because such a rule does not compare
        the statistics, each element is limited to ten median distances from the clients' median.

        Args:
            rows: the statistics of each client, in the order of ``shares``, fp32 on the CPU.
            own: the server's statistics. Their weight is 1 minus the sum of ``shares``.
            shares: the weight of each update. Empty: the rule combines element by element.
        """
        if not own.numel():
            return own
        if not self.compares:
            return ops.combine(rows, self.rule, **self._rule())
        middle = ops.combine(rows, "median")
        far = _FARTHEST * ops.combine([(row - middle).abs() for row in rows], "median")
        total = own * max(0.0, 1.0 - math.fsum(shares))
        for row, share in zip(rows, shares, strict=True):
            if share:
                ops.accumulate_(total, row.clamp(middle - far, middle + far), share)
        return total

    def start(self, material: Material) -> DirectionState:
        setting = native.engine.BufferedSetting(
            capacity=-1 if self.size is None else self.size, synchronous=self.synchronous, closes_first=False,
            at_least=self.at_least or 0, grace=self.grace or 0.0, size=material.size,
            combine=robust_of(self.rule, None, self._rule()),
        )  # fmt: skip
        return DirectionState(native.engine.Buffered(sign=self.sign, setting=setting, memory=material.memory))
