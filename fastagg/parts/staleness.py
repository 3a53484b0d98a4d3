"""Staleness policies: how much less an old update counts. Delays are in server versions, taken when an update is used.

Two levers exist: a weight on one update, ``s(tau)``, and the learning rate of a step, from the delays of all
updates in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fastagg import _checks
from fastagg.errors import ConfigError
from fastagg.parts.names import Rule
from fastagg.storage.later import Later
from fastagg.storage.pieces import Pieces


class Facts(NamedTuple):
    """What a policy, or a direction of a user's own, may look at when an update arrives."""

    client: int | str
    version: int  # the version it was trained from
    delay: int
    update: Pieces
    gain: float  # clipping factor still to be applied to the update
    norm: float  # of the update, before clipping
    moved: float | None  # |x_t - x_s|, where the policy measures it
    local_steps: int | None = None  # what the client was told to take
    kept: Any = None  # what the policy had kept with that version
    share: float = 1.0  # the client's number of samples with weighting="samples"


class Weighed(NamedTuple):
    """What a policy makes of one update."""

    weight: float | None  # None: it is dropped
    local_steps: int = 0  # what its client is told to take next; 0: as it is


@dataclass(frozen=True)
class Staleness:
    """Base of the policies: delays change nothing.

    Attributes:
        measures: whether :class:`Facts` must hold the distance the model moved since it was sent; its versions are then
            kept while any client holds them.
        weighs: whether an update's weight may differ from 1.
    """

    weighs: ClassVar[bool] = False

    @property
    def measures(self) -> bool:
        return False

    def check(self, steps_along_updates: bool) -> None:
        """Refuse directions and optimizers that make no sense with this policy.

        Args:
            steps_along_updates: whether every step is a multiple of one update (Single into SGD).

        Raises:
            ConfigError: and why.
        """

    def weight(self, delay: int) -> float:
        """Factor on an update that is ``delay`` versions old."""
        return 1.0

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        """Learning rate of a step that uses updates of these delays."""
        return lr

    def start(self, size: int, seed: int) -> StalenessState:
        """The state of a server with ``size`` parameters."""
        return StalenessState(self)


class StalenessState:
    """What a running server holds of its policy; most policies hold nothing.

    Nothing changes before the update it belongs to is applied: ``moves`` says what takes which place then.

    Attributes:
        local_steps: what clients are told to take at first; None where the policy does not say.
        looks: whether :meth:`weigh` is to be asked for every update, and not the policy's ``weight`` alone.
    """

    local_steps: int | None = None
    looks = False

    def __init__(self, policy: Staleness) -> None:
        self.policy = policy

    def keep(self) -> Any:
        """What is kept with the current version for as long as a client may answer it, beside the model."""
        return None

    def weigh(self, facts: Facts) -> Weighed:
        """The weight of an update, where the policy looks at more than its delay."""
        return Weighed(self.policy.weight(facts.delay))

    def moves(self, facts: Facts, step_size: float) -> list[tuple[Any, str, Any]]:
        """What takes its place once the model steps by ``step_size`` (negative for gradients) along the clipped update:
        (object, attribute, value)."""
        return []

    def rules(self) -> dict[str, Any]:
        """For :func:`fastagg.ops.judge`, if the weight is to be found on the device."""
        return {}

    def judged(self, facts: Facts, verdict: Later) -> None:
        """The device will know what to make of an update; it must not be waited for here."""

    def settle(self, client: int | str, ledger: Any) -> None:
        """What the device has said of a client's earlier answers counts from now on."""

    def nbytes(self) -> int:
        """Bytes of tensors held."""
        return 0

    def state_dict(self) -> dict[str, Any]:
        """Plain data and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""


@dataclass(frozen=True)
class Constant(Staleness):
    """``s(tau) = 1``."""


@dataclass(frozen=True)
class Hinge(Staleness):
    """``s(tau) = 1 if tau <= b else 1/(a*(tau - b) + 1)`` (FedAsync; the AsyncFedED paper, Eq. 41).

    Args:
        a: how fast the weight falls, > 0.
        b: the delay up to which nothing changes, >= 0.
    """

    a: float = 10.0
    b: float = 4.0
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _checks.number("a", self.a, above=0)
        _checks.number("b", self.b, least=0)

    def weight(self, delay: int) -> float:
        return 1.0 if delay <= self.b else 1.0 / (self.a * (delay - self.b) + 1.0)


@dataclass(frozen=True)
class Polynomial(Staleness):
    """``s(tau) = (tau + 1)^-a`` (FedAsync; the AsyncFedED paper, Eq. 41).

    Args:
        a: exponent, > 0.
    """

    a: float = 0.5
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _checks.number("a", self.a, above=0)

    def weight(self, delay: int) -> float:
        return float((delay + 1.0) ** -self.a)


@dataclass(frozen=True)
class DelayAdaptive(Staleness):
    """A learning rate that shrinks beyond a delay threshold, by the largest delay in the step.

    ``lr`` while ``tau_max <= threshold``; beyond it, by ``rule``:

    ============== ============================== =====================================================
    ``scaled``      ``min(lr, lr/tau_max)``        FADAS, Eq. 77: what its experiments ran
    ``reciprocal``  ``min(lr, 1/tau_max)``         FADAS, Eq. 4
    ``threshold``   ``lr*threshold/tau_max``       ASGD as the program of the ACE paper runs it
    ``lipschitz``   ``min(lr, 1/(4*L*tau_max))``   ASGD, the ACE paper's Algorithm a.4
    ``drop``        ``0``                          ASGD, the ACE paper's Algorithm a.4
    ============== ============================== =====================================================

    Args:
        threshold: tau_c, >= 0.
        rule: one of the above.
        lipschitz: L, > 0, for ``rule="lipschitz"`` only.
    """

    threshold: float = 10
    rule: Rule = "scaled"
    lipschitz: float | None = None

    def __post_init__(self) -> None:
        _checks.number("threshold", self.threshold, least=0)
        _checks.one_of("rule", self.rule, ("scaled", "reciprocal", "threshold", "lipschitz", "drop"))
        if (self.rule == "lipschitz") != (self.lipschitz is not None):
            raise ConfigError(f"lipschitz: belongs to rule='lipschitz' and to no other, got {self.lipschitz!r}")
        if self.lipschitz is not None:
            _checks.number("lipschitz", self.lipschitz, above=0)

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        longest = max(delays, default=0)
        if longest <= self.threshold:
            return lr
        if self.rule == "scaled":
            return min(lr, lr / longest)
        if self.rule == "reciprocal":
            return min(lr, 1.0 / longest)
        if self.rule == "threshold":
            return lr * self.threshold / longest
        if self.rule == "lipschitz":
            return min(lr, 1.0 / (4.0 * (self.lipschitz or 1.0) * longest))
        return 0.0
