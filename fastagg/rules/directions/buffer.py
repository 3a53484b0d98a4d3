"""Directions that step along the mean of several updates: FedBuff's buffer, FedAvg's round. Servers call them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypedDict

import torch

from fastagg import _checks
from fastagg._build import native
from fastagg._checks import Count, Divisor, NotNegative, Size
from fastagg.errors import ConfigError
from fastagg.rules.directions.base import Direction, DirectionState, Material
from fastagg.rules.names import Overflow
from fastagg.rules.privacy import Gaussian, privacy_of
from fastagg.rules.staleness import Staleness

# Settings that a subclass with `ends_early` = False refuses. The values are the reasons in the error.
_SUMS_ALONE = {
    "at_least": "steps with an update only, so its rounds end when they are full",
    "normalize": "divides by what its updates count for",
    "privacy": "keeps more of clients than a sum",
}
_DIVISORS: dict[str | float, float | str] = {"buffer": 0.0, "weights": -1.0}


class RoundSettings(TypedDict, total=False):
    """The settings of :class:`Buffer` besides ``size`` and ``kind``. Presets pass these keyword arguments on."""

    overflow: Overflow
    at_least: Count | None
    grace: NotNegative | None
    normalize: Literal["buffer", "weights"] | float
    privacy: Gaussian | None


@dataclass(frozen=True)
class Buffer(Direction):
    """``D = sum(Delta_i)/M`` over every M updates (FedBuff; FADAS, Algorithm 1).

    Args:
        size: M, updates per step, >= 1. None: all updates that arrive until :meth:`fastagg.Server.close_round`.
        overflow: what happens if a sum of several clients (:meth:`fastagg.Server.receive_partial`) has more updates
            than the round still needs. ``take``: the step is along the mean of more than M updates. ``close``: the
            server first steps along the earlier updates. The sum then begins the next round, and the sum's delay is
            larger by 1. A sum of more than M updates is a round of its own.
        at_least, grace: a round also ends ``grace`` seconds after its ``at_least``-th update, even if the round is not
            full (Decoupled DiLoCo, arXiv 2604.21428, quorum and grace window). The next ``dispatch``, ``receive`` or
            ``close_round(if_due=True)`` after that time first makes the step. Time is this process' monotonic clock.
            After a restart the window begins again. The log records the step, so a replay needs no clock. Both None:
            time does not end a round.
        normalize: the divisor of the sum: ``buffer``, ``weights`` or a number. ``buffer``: the number of updates in the
            sum, or of samples with ``weighting="samples"``. Staleness then makes the step shorter (FedBuff's paper,
            FLARE). ``weights``: the sum of the weights, which are samples times staleness (FLSim). A number > 0: this
            number. With the number of all clients, or of their samples, each update counts by its share among all
            clients (APPFL). With 1 the step is along the sum.
        privacy: a :class:`fastagg.Gaussian`. Updates are then clipped, and noise that hides each client is added to the
            sum. Only servers on the CPU support this setting. None: no noise.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Buffer(4, overflow="close"))
        >>> tasks = [server.dispatch(leaf) for leaf in ("north", "south")]
        >>> sums = fastagg.Partial(torch.full((2,), 3.0), 3, 3.0), fastagg.Partial(torch.full((2,), 6.0), 3, 3.0)
        >>> receipts = [server.receive_partial(*answer) for answer in zip(("north", "south"), sums)]
        >>> server.version, server.flat  # the step used north's sum, and south's sum begins the next round
        (1, tensor([1., 1.]))
        >>> fastagg.Buffer(100, at_least=80, grace=30.0).at_least  # wait at most 30 seconds for the last 20 updates
        80
    """

    size: Size | None = 10
    overflow: Overflow = field(default="take", kw_only=True)
    at_least: Count | None = field(default=None, kw_only=True)
    grace: NotNegative | None = field(default=None, kw_only=True)
    normalize: Literal["buffer", "weights"] | Divisor = field(default="buffer", kw_only=True)
    privacy: Gaussian | None = field(default=None, kw_only=True)
    buffered: ClassVar[bool] = True
    ends_early: ClassVar[bool] = True  # whether a step may happen without a new update

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("Buffer(100", self.size, self.at_least, self.grace)
        for name, reason in {} if self.ends_early else _SUMS_ALONE.items():
            if getattr(self, name) not in (None, "buffer"):
                raise ConfigError(f"{name}: {type(self).__name__} {reason}; leave it out")
        object.__setattr__(self, "privacy", privacy_of(self.privacy))
        if self.privacy is not None:
            self.privacy.native(self.size)

    @property
    def counts_clients(self) -> bool:
        return self.synchronous or self.at_least is not None

    def check(self, staleness: Staleness, clip_norm: float | None, weighting: str) -> None:
        if self.privacy is None:
            return
        if clip_norm is not None:
            raise ConfigError("clip_norm: privacy has its own; leave it out")
        if weighting != "uniform":
            raise ConfigError(f"weighting: with privacy all updates count alike, got {weighting!r}; write 'uniform'")
        if staleness.weighs or staleness.measures:
            raise ConfigError(
                f"staleness: with privacy all updates count alike, and {type(staleness).__name__} weighs them; use "
                "Constant(), or DelayAdaptive(), which changes the step"
            )

    def start(self, material: Material) -> DirectionState:
        return BufferState(self, material)


def check_window(example: str, size: int | None, at_least: int | None, grace: float | None) -> None:
    """Raise ConfigError if only one of ``at_least`` and ``grace`` is set, or ``at_least`` is above ``size``.
    ``example``: the start of a call, for the error."""
    if (at_least is None) != (grace is None):
        missing, partner = ("grace", "at_least") if grace is None else ("at_least", "grace")
        raise ConfigError(f"{missing}: needed with {partner}; write {example}, at_least=80, grace=30.0)")
    if at_least is not None:
        _checks.whole("at_least", at_least, least=1, most=size)


@dataclass(frozen=True)
class Cohort(Buffer):
    """The mean of one synchronous round of M clients, which have all trained from the current version (FedAvg).

    An update of an earlier round raises UnknownVersion.

    Example:
        >>> server = fastagg.Server(torch.zeros(1), fastagg.Cohort(2), fastagg.SGD(lr=1.0))
        >>> tasks = [server.dispatch(client) for client in range(2)]
        >>> outcomes = server.receive_many([(0, torch.tensor([1.0])), (1, torch.tensor([3.0]))])
        >>> float(server.parameters())  # the mean of the round
        2.0
    """

    synchronous: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overflow == "close":
            raise ConfigError(
                "overflow: 'close' ends the round that a sum belongs to, and a synchronous rule then refuses the sum; "
                "leave it at 'take'"
            )


class BufferState(DirectionState):
    """The sum of the round's updates so far. The update that fills the round is added in the step's pass."""

    def __init__(self, setting: Buffer, material: Material) -> None:
        native_setting = native.engine.BufferedSetting(
            capacity=-1 if setting.size is None else setting.size, synchronous=setting.synchronous,
            closes_first=setting.overflow == "close", at_least=setting.at_least or 0, grace=setting.grace or 0.0,
            divisor=_DIVISORS.get(setting.normalize, setting.normalize), size=material.size,
        )  # fmt: skip
        private = None
        if setting.privacy is not None:
            private = setting.privacy.native(setting.size)
        made = native.engine.Buffered(
            sign=setting.sign, setting=native_setting, memory=material.memory, privacy=private
        )  # fmt: skip
        if private is not None:
            made.set_key(material.key)
        super().__init__(made)
        self.nbytes = 4 * material.size

    def memory(self) -> dict[str, int]:
        return {"direction": (self.nbytes if self.native.holds_sum else 0) + self.native.nbytes()}

    def finite(self) -> bool:
        held = self.native.state()["acc"]
        return held is None or bool(torch.isfinite(held).all())
