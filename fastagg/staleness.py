"""Staleness policies: how much less an old update counts. Delays are in server versions, taken when an update is used.

Two levers exist: a weight on one update, ``s(tau)``, and the learning rate of a step, from the delays of all
updates in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastagg import _checks


@dataclass(frozen=True)
class Staleness:
    """Base of the policies: delays change nothing."""

    def weight(self, delay: int) -> float:
        """Factor on an update that is ``delay`` versions old."""
        return 1.0

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        """Learning rate of a step that uses updates of these delays."""
        return lr


@dataclass(frozen=True)
class Constant(Staleness):
    """``s(tau) = 1``."""


@dataclass(frozen=True)
class Hinge(Staleness):
    """``s(tau) = 1 if tau <= b else 1/(a*(tau - b) + 1)`` (FedAsync; paper 003, Eq. 41).

    Args:
        a: how fast the weight falls, > 0.
        b: the delay up to which nothing changes, >= 0.
    """

    a: float = 10.0
    b: float = 4.0

    def __post_init__(self) -> None:
        _checks.number("a", self.a, above=0)
        _checks.number("b", self.b, least=0)

    def weight(self, delay: int) -> float:
        return 1.0 if delay <= self.b else 1.0 / (self.a * (delay - self.b) + 1.0)


@dataclass(frozen=True)
class Polynomial(Staleness):
    """``s(tau) = (tau + 1)^-a`` (FedAsync; paper 003, Eq. 41).

    Args:
        a: exponent, > 0.
    """

    a: float = 0.5

    def __post_init__(self) -> None:
        _checks.number("a", self.a, above=0)

    def weight(self, delay: int) -> float:
        return float((delay + 1.0) ** -self.a)


@dataclass(frozen=True)
class DelayAdaptive(Staleness):
    """FADAS's delay-adaptive learning rate, from the largest delay in the step.

    ``lr`` while ``tau_max <= threshold``; beyond it ``min(lr, lr/tau_max)`` with ``rule="scaled"`` (paper 000,
    Eq. 77: what its experiments ran) or ``min(lr, 1/tau_max)`` with ``rule="reciprocal"`` (Eq. 4).

    Args:
        threshold: tau_c, >= 0.
        rule: ``scaled`` or ``reciprocal``.
    """

    threshold: float = 10
    rule: str = "scaled"

    def __post_init__(self) -> None:
        _checks.number("threshold", self.threshold, least=0)
        _checks.one_of("rule", self.rule, ("scaled", "reciprocal"))

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        longest = max(delays, default=0)
        if longest <= self.threshold:
            return lr
        return min(lr, (lr if self.rule == "scaled" else 1.0) / longest)
