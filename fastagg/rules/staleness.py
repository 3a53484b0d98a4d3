"""Staleness policies. A policy sets the weight ``s(tau)`` of an update, the learning rate of a step, or both, from the
updates' delays. Servers call a policy for each update or step.

The delay tau of an update is the number of versions that were made after the version that the update was trained from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, NamedTuple, get_args

from torch import Tensor

from fastagg import _checks
from fastagg._build import native
from fastagg._checks import Count, NotNegative, Positive
from fastagg._types import Native
from fastagg.errors import ConfigError
from fastagg.registry import RulePart
from fastagg.rules.names import Rule
from fastagg.storage.pieces import Pieces

__all__ = [
    "Constant",
    "CosineGate",
    "Cutoff",
    "DelayAdaptive",
    "Euclidean",
    "Facts",
    "Hinge",
    "Polynomial",
    "Staleness",
]

_MOST_STEPS = 2**31 - 1
if native.engine.rates != ("same", *get_args(Rule)):
    raise ImportError("fastagg.rules.names.Rule: expected the rates of csrc/engine/staleness.h")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an arriving update, for a policy or a user's own direction. Do not write to the vectors.

    Attributes:
        client: the id of the sender.
        version: the version that the update was trained from.
        delay: the number of versions that were made since that version.
        update: the update as it came. ``update.flat(torch.float32)`` is one vector [d].
        gain: the clipping factor, by which ``update`` has not been multiplied yet. 1: there is no clipping left to do.
        norm: the update's Euclidean norm, before clipping.
        moved: ``|x_t - x_s|``, if the policy or the direction measures this distance. Otherwise None.
        local_steps: the number of local steps in the client's task. None: the policy sets no number.
        share: the client's weight by ``weighting``, such as its number of samples. 1 with ``"uniform"``.
        model: the current model x_t, fp32 [d], for a user's own rules. Otherwise None.
        base: x_s, the model from which the client started, fp32 [d], for rules with ``needs_base``. Otherwise None.
        taken_part: the number of this client's updates that counted before this one, for rules with ``counts``.
        extra: the vectors that the client sent besides the update, by the names in ``takes``. They are fp32, on the
            server's device.
    """

    client: int | str
    version: int
    delay: int
    update: Pieces
    gain: float
    norm: float
    moved: float | None
    local_steps: int | None = None
    share: float = 1.0
    model: Tensor | None = None
    base: Tensor | None = None
    taken_part: int = 0
    extra: Mapping[str, Tensor] = field(default_factory=dict)


class UpdateWeight(NamedTuple):
    """A policy's result for one update."""

    weight: float | None  # the weight s(tau). None: the update is dropped.
    local_steps: int = 0  # the number of local steps of the client's next task. 0: unchanged.


@dataclass(frozen=True)
class Staleness(RulePart):
    """Base class of the policies. The base class itself ignores delays.

    Attributes:
        measures: whether :class:`Facts` must have ``moved``. The server then keeps each version as long as a client may
            send an update that was trained from it.
        weighs: whether an update's weight may differ from 1.
        needs_base, counts, takes: which facts :meth:`weigh` needs, as in :class:`fastagg.Direction`.
    """

    weighs: ClassVar[bool] = False
    needs_base: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    takes: ClassVar[Mapping[str, int | None]] = {}
    kernel: ClassVar[str] = "constant"  # the name of the weight's formula in csrc/engine/staleness.h

    @property
    def rate_kernel(self) -> str:
        """The name of the learning rate's formula in csrc/engine/staleness.h."""
        return "same"

    @property
    def measures(self) -> bool:
        return False

    def weight(self, delay: int) -> float | None:
        """Return the weight of an update with this delay. None drops the update."""
        weight: float | None = self._formulas(self.kernel, "same").weight(delay)
        return weight

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        """Return the learning rate of a step whose updates have these delays."""
        return float(self._formulas("constant", self.rate_kernel).rate(lr, delays))

    def weigh(self, facts: Facts) -> float | None:
        """Return an update's weight, or None to drop the update. A user's own policy may use all facts."""
        return self.weight(facts.delay)

    @property
    def looks(self) -> bool:
        """Whether :meth:`weigh` is a user's own method."""
        return type(self).weigh is not Staleness.weigh

    # Only fastagg/server and fastagg/rules use the following members.

    def _native(self) -> Native:
        """Return the formulas for the engine. For a user's own ``weight`` or ``rate``, the engine calls Python."""
        own_weight, own_rate = type(self).weight is not Staleness.weight, type(self).rate is not Staleness.rate
        return self._formulas("ask" if own_weight else self.kernel, "ask" if own_rate else self.rate_kernel)

    def _formulas(self, weight: str, rate: str) -> Native:
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        numbers = {name: value for name, value in settings.items() if isinstance(value, (int, float))}
        return native.engine.Staleness(weight, rate, numbers)

    @property
    def _first_steps(self) -> int | None:
        """The number of local steps in a client's first task. None: the policy sets no number."""
        return None

    def _weighed(self, facts: Facts) -> UpdateWeight:
        return UpdateWeight(self.weigh(facts))


@dataclass(frozen=True)
class Constant(Staleness):
    """``s(tau) = 1``."""


@dataclass(frozen=True)
class Hinge(Staleness):
    """``s(tau) = 1 if tau <= b else 1/(a*(tau - b) + 1)`` (FedAsync; the AsyncFedED paper, Eq. 41).

    Args:
        a: how fast the weight falls, > 0.
        b: the largest delay that keeps weight 1, >= 0.

    Example:
        >>> [fastagg.Hinge(a=1.0, b=4).weight(delay) for delay in (4, 5, 7)]
        [1.0, 0.5, 0.25]
    """

    a: Positive = 10.0
    b: NotNegative = 4.0
    weighs: ClassVar[bool] = True
    kernel: ClassVar[str] = "hinge"


@dataclass(frozen=True)
class Polynomial(Staleness):
    """``s(tau) = (tau + 1)^-a`` (FedAsync; the AsyncFedED paper, Eq. 41).

    Args:
        a: exponent, > 0.

    Example:
        >>> [fastagg.Polynomial(a=0.5).weight(delay) for delay in (0, 3, 8)]
        [1.0, 0.5, 0.3333333333333333]
    """

    a: Positive = 0.5
    weighs: ClassVar[bool] = True
    kernel: ClassVar[str] = "polynomial"


@dataclass(frozen=True)
class CosineGate(Staleness):
    """``s(tau) = exp(-alpha*tau) * (1 + cos(pi*tau/cutoff))/2``, and 0 from the cutoff on (CGAD, arXiv 2605.09126).

    The weighted update enters the optimizer's moments. The paper's optimizer is Adam. An update with weight 0 still
    makes a step, along a vector of zeros. The paper's abstract only mentions an exponential, and a cosine that reaches
    zero at a cutoff. That the cosine has half a period up to the cutoff is an interpretation.

    Args:
        alpha: how fast the exponential falls, >= 0.
        cutoff: updates with at least this delay have weight 0, > 0.

    Example:
        >>> [round(fastagg.CosineGate(alpha=0.1, cutoff=8).weight(delay), 3) for delay in (0, 4, 8)]
        [1.0, 0.335, 0.0]
    """

    alpha: NotNegative = 0.1
    cutoff: Positive = 8.0
    weighs: ClassVar[bool] = True
    kernel: ClassVar[str] = "cosine"


@dataclass(frozen=True)
class Cutoff(Staleness):
    """Drops updates whose delay is at least ``delay``, without a step (Ringmaster ASGD, arXiv 2501.16168).

    Args:
        delay: R, >= 1.

    Example:
        >>> [fastagg.Cutoff(delay=3).weight(delay) for delay in (2, 3)]
        [1.0, None]
    """

    delay: Count = 10
    weighs: ClassVar[bool] = True
    kernel: ClassVar[str] = "cutoff"


@dataclass(frozen=True)
class DelayAdaptive(Staleness):
    """A learning rate that shrinks if ``tau_max``, the largest delay in a step, exceeds a threshold.

    The rate is ``lr`` if ``tau_max <= threshold``. Otherwise the rate depends on ``rule``:

    ============== ============================== =====================================================
    ``scaled``      ``min(lr, lr/tau_max)``        FADAS, Eq. 77, used in its experiments
    ``reciprocal``  ``min(lr, 1/tau_max)``         FADAS, Eq. 4
    ``threshold``   ``lr*threshold/tau_max``       ASGD in the program of the ACE paper
    ``lipschitz``   ``min(lr, 1/(4*L*tau_max))``   ASGD, the ACE paper's Algorithm a.4
    ``drop``        ``0``                          ASGD, the ACE paper's Algorithm a.4
    ============== ============================== =====================================================

    Args:
        threshold: tau_c, >= 0.
        rule: one of the rules above.
        lipschitz: L, > 0, for ``rule="lipschitz"``. For other rules: None.

    Example:
        >>> fastagg.DelayAdaptive(threshold=10).rate(0.5, delays=[3, 20])  # lr / 20
        0.025
    """

    threshold: Annotated[float, _checks.SettingRule(least=0, name="delay_threshold")] = 10
    rule: Rule = "scaled"
    lipschitz: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rule == "lipschitz") != (self.lipschitz is not None):
            do = f"leave it out with {self.rule!r}" if self.lipschitz is not None else "write lipschitz=1.0"
            raise ConfigError(_checks.wrong("lipschitz", "a number with 'lipschitz' alone", self.lipschitz, do))

    @property
    def rate_kernel(self) -> str:
        return self.rule


@dataclass(frozen=True)
class Euclidean(Staleness):
    """The weight is ``lam/(gamma + eps)`` with ``gamma = |x_t - x_s|/|Delta|``. Local steps depend on gamma, too.

    These are Eqs. 6 to 8 of AsyncFedED's paper. x_t is the current model, x_s the model that the client was sent, and
    Delta the clipped update. ``K_next = K + floor((gamma_bar - gamma)*kappa)``, limited to 1..max_local_steps, is the
    number of local steps of the client's next task. K is that of the last task. An update of norm zero is dropped.
    The delay has no effect, so :meth:`weight` returns 1.

    Args:
        lam: lambda, > 0.
        eps: > 0. The weight is at most ``lam/eps``.
        gamma_bar: the target of gamma, >= 0.
        kappa: how fast K changes, >= 0.
        local_steps: K of a client's first task, >= 1.
        max_local_steps: the largest K. None: no limit.
        gamma_max: updates with a larger gamma are discarded (the paper's Assumption 4). None: never.

    Example:
        >>> server = fastagg.Server(torch.zeros(2), fastagg.Single(), fastagg.SGD(), fastagg.Euclidean(lam=0.5))
        >>> server.dispatch("ann").local_steps
        10
    """

    lam: Positive = 1.0
    eps: Positive = 1.0
    gamma_bar: NotNegative = 3.0
    kappa: NotNegative = 1.0
    local_steps: Annotated[int, _checks.SettingRule(least=1, most=_MOST_STEPS)] = 10
    max_local_steps: Annotated[int, _checks.SettingRule(least=1, most=_MOST_STEPS)] | None = None
    gamma_max: Positive | None = None
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_local_steps is not None:
            _checks.whole("max_local_steps", self.max_local_steps, least=self.local_steps, most=_MOST_STEPS)

    @property
    def measures(self) -> bool:
        return True

    @property
    def _first_steps(self) -> int:
        return self.local_steps

    def _weighed(self, facts: Facts) -> UpdateWeight:
        norm = facts.norm * facts.gain
        if norm == 0.0:
            return UpdateWeight(None)
        assert facts.moved is not None
        gamma = facts.moved / norm
        steps = self._next_steps(facts.local_steps, gamma)
        if self.gamma_max is not None and gamma > self.gamma_max:
            return UpdateWeight(None, steps)
        return UpdateWeight(self.lam / (gamma + self.eps), steps)

    def _next_steps(self, local_steps: int | None, gamma: float) -> int:
        steps = (local_steps or self.local_steps) + math.floor((self.gamma_bar - gamma) * self.kappa)
        return max(1, min(steps, _MOST_STEPS if self.max_local_steps is None else self.max_local_steps))
