"""AsyncFedED's staleness: the distance that the model moved, relative to the length of the client's update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fastagg import _checks
from fastagg._types import Plain
from fastagg.rules.staleness import Facts, Ledger, Staleness, StalenessState, Weighed
from fastagg.storage.later import Later

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

    lam: float = 1.0
    eps: float = 1.0
    gamma_bar: float = 3.0
    kappa: float = 1.0
    local_steps: int = 10
    max_local_steps: int | None = None
    gamma_max: float | None = None
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _checks.number("lam", self.lam, above=0)
        _checks.number("eps", self.eps, above=0)
        _checks.number("gamma_bar", self.gamma_bar, least=0)
        _checks.number("kappa", self.kappa, least=0)
        _checks.whole("local_steps", self.local_steps, least=1, most=_MOST_STEPS)
        if self.max_local_steps is not None:
            _checks.whole("max_local_steps", self.max_local_steps, least=self.local_steps, most=_MOST_STEPS)
        if self.gamma_max is not None:
            _checks.number("gamma_max", self.gamma_max, above=0)

    @property
    def measures(self) -> bool:
        return True

    def start(self) -> StalenessState:
        return _EuclideanState(self)


class _EuclideanState(StalenessState):
    """Holds verdicts that the device has not returned yet. The ledger holds the clients' numbers of local steps."""

    policy: Euclidean

    def __init__(self, policy: Euclidean) -> None:
        super().__init__(policy)
        self.looks = True
        self.local_steps = policy.local_steps
        # client -> (version, the client's K, the verdict to come)
        self.pending: dict[int | str, list[tuple[int, int, Later]]] = {}

    def weigh(self, facts: Facts) -> Weighed:
        norm = facts.norm * facts.gain
        if norm == 0.0:
            return Weighed(None)
        assert facts.moved is not None
        gamma = facts.moved / norm
        steps = self._next(facts.local_steps or self.policy.local_steps, gamma)
        if self.policy.gamma_max is not None and gamma > self.policy.gamma_max:
            return Weighed(None, steps)
        return Weighed(self.policy.lam / (gamma + self.policy.eps), steps)

    def _next(self, local_steps: int, gamma: float) -> int:
        steps = local_steps + math.floor((self.policy.gamma_bar - gamma) * self.policy.kappa)
        most = _MOST_STEPS if self.policy.max_local_steps is None else self.policy.max_local_steps
        return max(1, min(steps, most))

    def rules(self) -> Plain:
        return {"lam": self.policy.lam, "eps": self.policy.eps, "gamma_max": self.policy.gamma_max}

    def judged(self, facts: Facts, verdict: Later) -> None:
        local_steps = facts.local_steps or self.policy.local_steps
        self.pending.setdefault(facts.client, []).append((facts.version, local_steps, verdict))

    def settle(self, client: int | str, ledger: Ledger) -> None:
        for version, local_steps, verdict in self.pending.pop(client, ()):
            norm2, moved2, _, gain, _, _ = verdict.tolist()
            # If an answer was interrupted before it was taken, its task is still open and its verdict is ignored.
            if 0.0 < norm2 < math.inf and not ledger.owes(client, version):
                ledger.tell_next(client, self._next(local_steps, math.sqrt(moved2) / (math.sqrt(norm2) * gain)))
