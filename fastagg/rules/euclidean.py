"""AsyncFedED's staleness: the distance that the model moved, relative to the length of the client's update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._types import Move, Plain, State
from fastagg.errors import ConfigError
from fastagg.rules.staleness import Facts, Ledger, Staleness, StalenessState, Weighed
from fastagg.storage.later import Later

__all__ = ["Euclidean"]

_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Euclidean(Staleness):
    """Staleness ``gamma = |x_t - x_s|/|Delta|``, weight ``lam/(gamma + eps)``, and local steps that depend on gamma.

    AsyncFedED's paper, Eqs. 6 to 8. The next number of local steps ``K_next = K + floor((gamma_bar - gamma)*kappa)`` is
    limited to 1..max_local_steps, where K is the client's last number. An update of norm zero changes nothing.

    With ``sketch=k`` the server stores k random projections of a version instead of its d parameters. gamma is then an
    estimate. Its square is unbiased, its relative error is about ``1/sqrt(2*k)``, and it takes O(k) time and k floats
    per version.

    Args:
        lam: lambda, > 0.
        eps: > 0. The weight is at most ``lam/eps``.
        gamma_bar: the target staleness, >= 0.
        kappa: how fast K changes, >= 0.
        local_steps: the first K, >= 1.
        max_local_steps: the largest K, or None.
        gamma_max: updates with a larger gamma are discarded (the paper's Assumption 4). None: never.
        sketch: k, >= 1024, or None for exact distances.

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
    sketch: int | None = None
    weighs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _checks.number("lam", self.lam, above=0)
        _checks.number("eps", self.eps, above=0)
        _checks.number("gamma_bar", self.gamma_bar, least=0)
        _checks.number("kappa", self.kappa, least=0)
        _checks.whole("local_steps", self.local_steps, least=1)
        if self.max_local_steps is not None:
            _checks.whole("max_local_steps", self.max_local_steps, least=self.local_steps)
        if self.gamma_max is not None:
            _checks.number("gamma_max", self.gamma_max, above=0)
        if self.sketch is not None:
            _checks.whole("sketch", self.sketch, least=1024)

    @property
    def measures(self) -> bool:
        return self.sketch is None

    def check(self, steps_along_updates: bool) -> None:
        if self.sketch is not None and not steps_along_updates:
            raise ConfigError(
                "Euclidean(sketch=...) follows the model by the sketches of its updates: "
                "that needs direction Single() and optimizer SGD without weight decay"
            )

    def start(self, size: int, seed: int) -> StalenessState:
        return _EuclideanState(self, seed) if self.sketch is None else _SketchedState(self, self.sketch, seed)


class _EuclideanState(StalenessState):
    """Holds verdicts that the device has not returned yet. The ledger holds the clients' numbers of local steps."""

    policy: Euclidean
    looks = True
    reads_update = False

    def __init__(self, policy: Euclidean, seed: int) -> None:
        super().__init__(policy)
        self.seed = seed
        self.local_steps = policy.local_steps
        # client -> (version, the client's K, the verdict to come)
        self.pending: dict[int | str, list[tuple[int, int, Later]]] = {}

    def weigh(self, facts: Facts) -> Weighed:
        norm = facts.norm * facts.gain
        if norm == 0.0:
            return Weighed(None)
        gamma = self._moved(facts) / norm
        steps = self._next(facts.local_steps or self.policy.local_steps, gamma)
        if self.policy.gamma_max is not None and gamma > self.policy.gamma_max:
            return Weighed(None, steps)
        return Weighed(self.policy.lam / (gamma + self.policy.eps), steps)

    def _next(self, told: int, gamma: float) -> int:
        steps = told + math.floor((self.policy.gamma_bar - gamma) * self.policy.kappa)
        most = _MOST_STEPS if self.policy.max_local_steps is None else self.policy.max_local_steps
        return max(1, min(steps, most))

    def rules(self) -> Plain:
        return {"lam": self.policy.lam, "eps": self.policy.eps, "gamma_max": self.policy.gamma_max}

    def judged(self, facts: Facts, verdict: Later) -> None:
        told = facts.local_steps or self.policy.local_steps
        self.pending.setdefault(facts.client, []).append((facts.version, told, verdict))

    def settle(self, client: int | str, ledger: Ledger) -> None:
        for version, told, verdict in self.pending.pop(client, ()):
            norm2, moved2, _, gain, _, _ = verdict.tolist()
            # If an answer was interrupted before it was taken, its task is still open and its verdict is ignored.
            if 0.0 < norm2 < math.inf and not ledger.owes(client, version):
                ledger.tell_next(client, self._next(told, math.sqrt(moved2) / (math.sqrt(norm2) * gain)))

    def _moved(self, facts: Facts) -> float:
        assert facts.moved is not None
        return facts.moved


class _SketchedState(_EuclideanState):
    """The sketch of the current model minus that of the first. The ledger keeps it with every version in use."""

    reads_update = True

    def __init__(self, policy: Euclidean, k: int, seed: int) -> None:
        super().__init__(policy, seed)
        self.now = torch.zeros(k, dtype=torch.float64)

    def keep(self) -> Tensor:
        return self.now.to(torch.float32)

    def _moved(self, facts: Facts) -> float:
        moved = (self.now - facts.kept).numpy()
        # cumsum adds in a fixed order, torch's sum does not. So bits are the same on every processor.
        return float(np.sqrt(np.cumsum(np.square(moved))[-1]))

    def moves(self, facts: Facts, step_size: float) -> list[Move]:
        sketch = ops.sketch(facts.update, len(self.now), self.seed)
        return [(self, "now", self.now + (step_size * facts.gain) * sketch.to(torch.float64))]

    def nbytes(self) -> int:
        return self.now.numel() * 8

    def state_dict(self) -> State:
        return {"now": self.now}

    def load_state_dict(self, state: State) -> None:
        if state["now"].shape != self.now.shape or state["now"].dtype != self.now.dtype:
            raise ValueError("a sketch of another length")
        self.now = state["now"].clone()
