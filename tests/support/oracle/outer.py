"""Outer optimizers of large-model training: few workers, long local training, pseudo-gradients G = -Delta.

DiLoCo (2311.08105), asynchronous DiLoCo (2401.09135), HeLoCo (2606.00271), Decoupled DiLoCo (2604.21428), Ringmaster
ASGD (2501.16168), and CGAD's weights (2605.09126). As everywhere here D = -G is added, and so m is minus the papers'.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .buffered import Buffer
from .core import Arrival, Composed, Vector
from .immediate import Single
from .optimizers import SGD, DelayedNesterov, Nesterov
from .policies import Policy
from .synchronous import Cohort


class CosineGate(Policy):
    """exp(-alpha*tau) times half a cosine that is zero from the cutoff on."""

    def __init__(self, alpha: float, cutoff: float) -> None:
        self.alpha, self.cutoff = alpha, cutoff

    def weight(self, server: Composed, arrival: Arrival) -> float:
        part = min(arrival.delay / self.cutoff, 1.0)
        return math.exp(-self.alpha * arrival.delay) * math.cos(math.pi * part / 2) ** 2


class Cutoff(Policy):
    """Ringmaster ASGD: a gradient with delay >= R is ignored, and the iteration does not count."""

    def __init__(self, delay: int) -> None:
        self.delay = delay

    def weight(self, server: Composed, arrival: Arrival) -> float | None:
        return 1.0 if arrival.delay < self.delay else None


class Aligned(Single):
    """HeLoCo's Algorithm 2 for every tensor (Eqs. 7 to 15), then rho. The momentum is the server's optimizer's."""

    def __init__(self, sizes: list[int], rho: float = 1.0, eps: float = 1e-8, **how: float) -> None:
        self.places = np.cumsum([0, *sizes])
        self.rho, self.eps, self.how = rho, eps, how
        self.nearest = 1.0  # of all cosines so far, to one at which the rule jumps

    def add(self, server: Composed, arrival: Arrival) -> Vector:
        momentum = getattr(server.optimizer, "m", np.zeros_like(server.x))
        sign = -1.0 if server.kind == "gradient" else 1.0  # m has the sign of what is added
        parts = [
            self.corrected(arrival.update[a:b], sign * momentum[a:b])
            for a, b in zip(self.places[:-1], self.places[1:], strict=True)
        ]
        return self.rho * arrival.weight * np.concatenate(parts)

    def corrected(self, delta: Vector, m: Vector) -> Vector:
        c_ok, k_s, k_d, kappa, beta_max = (self.how.get(name, usual) for name, usual in (
            ("c_ok", 0.2), ("k_s", 0.5), ("k_d", 1.0), ("kappa", 3.0), ("beta_max", 0.5)))  # fmt: skip
        length, of_m = float(np.linalg.norm(delta)), float(np.linalg.norm(m))
        if length < self.eps or of_m < self.eps:
            return delta
        u, v = delta / length, m / of_m
        cosine, confidence = float(u @ v), length / (length + kappa * of_m + self.eps)
        self.nearest = min(self.nearest, abs(cosine), abs(cosine - c_ok))
        if cosine >= c_ok:
            return delta
        if cosine < 0:
            beta = min(k_s * -cosine * confidence, beta_max)
            return delta - beta * cosine * length * v
        l = min(k_d * (1 - cosine) * confidence, 1.0)  # noqa: E741
        mixed = (1 - l) * u + l * v
        return length * mixed / float(np.linalg.norm(mixed))


class DiLoCo(Composed):
    """The mean delta of a round into Nesterov."""

    def __init__(
        self, x0: npt.ArrayLike, clients_per_round: int, lr: float = 0.7, momentum: float = 0.9, **common: Any
    ) -> None:
        super().__init__(x0, Cohort(clients_per_round), Nesterov(lr, momentum), **common)


class AsyncDiLoCo(Composed):
    """Every update into Delayed Nesterov."""

    def __init__(
        self, x0: npt.ArrayLike, lr: float = 0.7, momentum: float = 0.9, period: int = 10, **common: Any
    ) -> None:
        super().__init__(x0, Single(), DelayedNesterov(lr, momentum, period), **common)


class HeLoCo(Composed):
    """Corrected updates into m <- mu*m + (1-mu)*D ; x <- x + eta*(D + mu*m). `sent` is what workers are sent."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        sizes: list[int] | None = None,
        lr: float = 0.7,
        momentum: float = 0.9,
        rho: float = 1.0,
        correction: dict[str, float] | None = None,
        **common: Any,
    ) -> None:
        self.along = Aligned([np.size(x0)] if sizes is None else sizes, rho, **(correction or {}))
        super().__init__(x0, self.along, Nesterov(lr, momentum, momentum), **common)

    @property
    def sent(self) -> Vector:
        """Eq. 5: the look-ahead."""
        steps = self.optimizer
        return self.x + steps.lr * steps.mu * steps.m if steps.steps else self.x  # type: ignore[attr-defined]


class DecoupledDiLoCo(Composed):
    """One fragment: Nesterov on the weighted mean of the learners' deltas."""

    def __init__(
        self, x0: npt.ArrayLike, buffer_size: int, lr: float = 0.7, momentum: float = 0.9, **common: Any
    ) -> None:
        super().__init__(x0, Buffer(buffer_size), Nesterov(lr, momentum), **common)


class RingmasterASGD(Composed):
    """ASGD over the gradients that are fresh enough."""

    def __init__(self, x0: npt.ArrayLike, lr: float, delay_threshold: int, **common: Any) -> None:
        super().__init__(x0, Single(), SGD(lr), Cutoff(delay_threshold), kind="gradient", **common)
