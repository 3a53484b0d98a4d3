"""Immediate rules: every arrival is one step.

Vanilla ASGD; delay-adaptive ASGD (002 Alg. a.4); FedAsync (003 Eqs. 40, 41); AsyncFedED (003 Alg. 1,
Eqs. 5 to 8).
"""

from typing import Any, Literal

import numpy.typing as npt

from .core import Arrival, Composed, Direction, Vector
from .optimizers import SGD
from .policies import Constant, Euclidean, Hinge, Policy, Polynomial, StaleStep


class Single(Direction):
    """u = s(tau)*update."""

    immediate = True

    def add(self, server: Composed, arrival: Arrival) -> Vector:
        return arrival.weight * arrival.update


class StaleModel(Direction):
    """u = s(tau)*(x_i^K - x_t) with x_i^K = x_s + Delta_i, so that x + alpha*u = (1-a_t)*x + a_t*x_i^K.

    normalize: s(tau) is multiplied by n_i/normalize, the client's share (APPFL).
    """

    immediate = True

    def __init__(self, normalize: float | None = None) -> None:
        self.normalize = normalize

    def add(self, server: Composed, arrival: Arrival) -> Vector:
        client_model = server.history[arrival.version] + arrival.update
        return arrival.weight * self.share(arrival) * (client_model - server.x)

    def share(self, arrival: Arrival) -> float:
        return 1.0 if self.normalize is None else arrival.samples / self.normalize


class ASGD(Composed):
    """Vanilla asynchronous SGD: x <- x - eta*g_i on every arrival (002 Alg. a.2 with M = 1)."""

    def __init__(self, x0: npt.ArrayLike, lr: float, **common: Any) -> None:
        super().__init__(x0, Single(), SGD(lr), kind="gradient", **common)


class DelayAdaptiveASGD(Composed):
    """002 Alg. a.4: ASGD with eta_t from the delay. delay_threshold is tau_C (the paper: the concurrency)."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float,
        delay_threshold: float,
        stale: Literal["lipschitz", "drop", "scaled"] = "lipschitz",
        lipschitz: float | None = None,
        **common: Any,
    ) -> None:
        policy = StaleStep(delay_threshold, stale, lipschitz)
        super().__init__(x0, Single(), SGD(lr), policy, kind="gradient", **common)


class FedAsync(Composed):
    """003 Eqs. 40, 41: x <- (1-a_t)*x + a_t*x_i^K, a_t = alpha*s(tau)."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        alpha: float = 0.6,
        policy: Literal["constant", "hinge", "polynomial"] = "constant",
        a: float | None = None,
        b: float | None = None,
        normalize: float | None = None,
        **common: Any,
    ) -> None:
        rule: Policy
        if policy == "constant":
            rule = Constant()
        elif policy == "hinge" and a is not None and b is not None:
            rule = Hinge(a, b)
        elif policy == "polynomial" and a is not None:
            rule = Polynomial(a)
        else:
            raise ValueError(f"policy {policy!r} with a={a}, b={b}")
        super().__init__(x0, StaleModel(normalize), SGD(alpha), rule, **common)


class AsyncFedED(Composed):
    """003 Alg. 1: x <- x + lambda/(gamma+eps)*Delta_i; the next K from Eq. 8 (`local_steps(client)`).

    `euclidean` holds the options of `Euclidean`: k_min, k_max, gamma_max.
    """

    def __init__(
        self,
        x0: npt.ArrayLike,
        lam: float,
        eps: float,
        gamma_bar: float = 3.0,
        kappa: float = 1.0,
        local_steps: int = 10,
        euclidean: dict[str, Any] | None = None,
        **common: Any,
    ) -> None:
        self.euclidean = Euclidean(lam, eps, gamma_bar, kappa, local_steps, **(euclidean or {}))
        super().__init__(x0, Single(), SGD(1.0), self.euclidean, **common)
