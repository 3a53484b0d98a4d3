"""AsyncFedED's staleness: the distance that the model moved, relative to the length of the client's update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fastagg import _checks
from fastagg._checks import NotNegative, Positive
from fastagg._types import Plain
from fastagg.rules.staleness import Facts, Staleness, Weighed

__all__ = ["Euclidean"]

_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Euclidean(Staleness):
    """Staleness ``gamma = |x_t - x_s|/|Delta|``, weight ``lam/(gamma + eps)``, and local steps that depend on gamma.

    AsyncFedED's paper, Eqs. 6 to 8. The next number of local steps ``K_next = K + floor((gamma_bar - gamma)*kappa)`` is
    limited to 1..max_local_steps, where K is the client's last number. An update of norm zero changes nothing.

    Args:
        lam: lambda, > 0.
        eps: > 0. The weight is at most ``lam/eps``.
        gamma_bar: the target staleness, >= 0.
        kappa: how fast K changes, >= 0.
        local_steps: the first K, >= 1.
        max_local_steps: the largest K, or None.
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
    local_steps: Annotated[int, _checks.Rule(least=1, most=_MOST_STEPS)] = 10
    max_local_steps: int | None = None
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

    def _weighed(self, facts: Facts) -> Weighed:
        norm = facts.norm * facts.gain
        if norm == 0.0:
            return Weighed(None)
        assert facts.moved is not None
        gamma = facts.moved / norm
        steps = self._next_steps(facts.local_steps, gamma)
        if self.gamma_max is not None and gamma > self.gamma_max:
            return Weighed(None, steps)
        return Weighed(self.lam / (gamma + self.eps), steps)

    def _rules(self) -> Plain:
        return {"lam": self.lam, "eps": self.eps, "gamma_max": self.gamma_max}

    def _next_steps(self, local_steps: int | None, gamma: float) -> int:
        steps = (local_steps or self.local_steps) + math.floor((self.gamma_bar - gamma) * self.kappa)
        return max(1, min(steps, _MOST_STEPS if self.max_local_steps is None else self.max_local_steps))
