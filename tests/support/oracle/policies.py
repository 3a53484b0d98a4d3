"""What the delay does to an update or to a step.

Constant, hinge, polynomial and euclidean policies weigh the update when it arrives. Delay-adaptive policies
change the learning rate of the step, from tau_max over the updates in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from .core import Arrival, Composed


class Policy:
    """Base: no influence at all."""

    def weight(self, server: Composed, arrival: Arrival) -> float | None:
        """s(tau) of an arriving update; None discards it (no step, no version, no place in the buffer)."""
        return 1.0

    def learning_rate(self, lr: float, tau_max: int) -> float:
        """eta_t of the step."""
        return lr

    def dispatched(self, client: int, version: int) -> None:
        """Called when a model is sent."""

    def local_steps(self, client: int) -> int | None:
        """Local steps the client is told to make."""
        return None


class Constant(Policy):
    """s = 1 (FedAsync+Constant, 003 Eq. 40)."""


class Hinge(Policy):
    """s = 1 if tau <= b else 1/(a*(tau-b)+1)   (FedAsync+Hinge, 003 Eq. 41)."""

    def __init__(self, a: float, b: float) -> None:
        self.a, self.b = a, b

    def weight(self, server: Composed, arrival: Arrival) -> float:
        tau = arrival.delay
        return 1.0 if tau <= self.b else 1.0 / (self.a * (tau - self.b) + 1.0)


class Polynomial(Policy):
    """s = (tau+1)^-a   (FedAsync, third policy)."""

    def __init__(self, a: float) -> None:
        self.a = a

    def weight(self, server: Composed, arrival: Arrival) -> float:
        return float((arrival.delay + 1.0) ** -self.a)


class DelayAdaptive(Policy):
    """FADAS's step (000): eta up to tau_c, beyond it "reciprocal" min(eta, 1/tau_max) (Eq. 4) or "scaled"
    min(eta, eta/tau_max) (Eq. 77). threshold None: eta always (FADAS without delay adaptation)."""

    def __init__(self, threshold: float | None, rule: Literal["scaled", "reciprocal"] = "scaled") -> None:
        self.threshold = threshold
        self.rule = rule

    def learning_rate(self, lr: float, tau_max: int) -> float:
        if self.threshold is None or tau_max <= self.threshold:
            return lr
        return min(lr, (1.0 if self.rule == "reciprocal" else lr) / tau_max)


class StaleStep(Policy):
    """Delay-adaptive ASGD's step (002 Alg. a.4): eta up to tau_C, beyond it

    "lipschitz"  min(eta, 1/(4*L*tau))   line 10's bound taken as the value (the paper asks for less than it)
    "drop"       0
    "scaled"     eta*tau_C/tau           another rule than FADAS's "scaled"
    """

    def __init__(
        self,
        threshold: float,
        stale: Literal["lipschitz", "drop", "scaled"] = "lipschitz",
        lipschitz: float | None = None,
    ) -> None:
        self.threshold = threshold
        self.stale = stale
        self.lipschitz = lipschitz

    def learning_rate(self, lr: float, tau_max: int) -> float:
        if tau_max <= self.threshold:
            return lr
        if self.stale == "drop":
            return 0.0
        if self.stale == "scaled":
            return lr * self.threshold / tau_max
        assert self.lipschitz is not None
        return min(lr, 1.0 / (4.0 * self.lipschitz * tau_max))


class Euclidean(Policy):
    """AsyncFedED (003, Alg. 1): gamma = ||x_t - x_s||/||Delta|| (Eq. 6), eta = lambda/(gamma + eps) (Eq. 7),
    K_next = K + floor((gamma_bar - gamma)*kappa) (Eq. 8), kept in k_min..k_max.

    An update of norm zero is discarded and K stays. gamma > gamma_max discards the update (Assumption 4), and K follows
    Eq. 8 all the same. Eq. 8 starts from the K sent with the answered dispatch (Alg. 1: the client returns K_{i,n}).
    last_gamma: of the last update that had one, to keep tests away from the floor's jumps.
    """

    def __init__(
        self,
        lam: float,
        eps: float,
        gamma_bar: float = 3.0,
        kappa: float = 1.0,
        local_steps: int = 10,
        *,
        k_min: int = 1,
        k_max: int | None = None,
        gamma_max: float | None = None,
    ) -> None:
        self.lam, self.eps = lam, eps
        self.gamma_bar, self.kappa = gamma_bar, kappa
        self.k_initial, self.k_min, self.k_max = local_steps, k_min, k_max
        self.gamma_max = gamma_max
        self.k: dict[int, int] = {}
        self.k_sent: dict[tuple[int, int], int] = {}
        self.last_gamma: float | None = None

    def dispatched(self, client: int, version: int) -> None:
        self.k_sent[client, version] = self.local_steps(client)

    def local_steps(self, client: int) -> int:
        return self.k.get(client, self.k_initial)

    def weight(self, server: Composed, arrival: Arrival) -> float | None:
        norm = float(np.linalg.norm(arrival.update))
        if norm == 0.0:
            return None
        gamma = float(np.linalg.norm(server.x - server.history[arrival.version])) / norm
        self.last_gamma = gamma
        discarded = self.gamma_max is not None and gamma > self.gamma_max
        k = self.k_sent[arrival.client, arrival.version] + math.floor((self.gamma_bar - gamma) * self.kappa)
        k = max(k, self.k_min)
        self.k[arrival.client] = k if self.k_max is None else min(k, self.k_max)
        return None if discarded else self.lam / (gamma + self.eps)
