"""Synchronous rules: all clients of a round start from the same version and the step waits for all of them.

FedAvg (003 Eq. 38), FedAvgM, and the mean delta into FedAdam, FedYogi, FedAdagrad, FedAMS. FedProx is FedAvg
with another local loss (003 Eq. 39).
"""

from typing import Any, Literal

import numpy.typing as npt

from .buffered import Buffer, Robust
from .core import Arrival, Composed, Vector
from .optimizers import SGD, Adagrad, Adam, AMSGrad, Momentum, Optimizer, Yogi


class Cohort(Buffer):
    """The round's mean delta: D = sum p_i*Delta_i, which makes x + D = sum p_i*x_i^K as all start from x.

    An update of an earlier round has no meaning here.
    """

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        if arrival.delay != 0:
            raise ValueError(f"a synchronous round takes no update that is {arrival.delay} rounds old")
        return super().add(server, arrival)


class _Synchronous(Composed):
    def __init__(self, x0: npt.ArrayLike, clients_per_round: int, optimizer: Optimizer, **common: Any) -> None:
        super().__init__(x0, Cohort(clients_per_round), optimizer, **common)


class _RobustCohort(Cohort, Robust):
    """A round of which a robust rule makes the step."""


class FedMedian(Composed):
    """The median of the round's deltas, element by element."""

    def __init__(self, x0: npt.ArrayLike, clients_per_round: int, lr: float = 1.0, **common: Any) -> None:
        super().__init__(x0, _RobustCohort("median", clients_per_round), SGD(lr), **common)


class FedTrimmedAvg(Composed):
    """Their trimmed mean."""

    def __init__(
        self, x0: npt.ArrayLike, clients_per_round: int, beta: float = 0.2, lr: float = 1.0, **common: Any
    ) -> None:
        super().__init__(x0, _RobustCohort("trimmed", clients_per_round, beta), SGD(lr), **common)


class FedAvg(_Synchronous):
    """003 Eq. 38: x <- sum p_i*x_i^K, p_i = n_i/sum n (the 1/m printed there would shrink the model)."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        clients_per_round: int,
        lr: float = 1.0,
        weighting: Literal["uniform", "samples"] = "samples",
        **common: Any,
    ) -> None:
        super().__init__(x0, clients_per_round, SGD(lr), weighting=weighting, **common)


class FedAvgM(_Synchronous):
    """FedAvg with server momentum: m <- b1*m + D ; x <- x + eta*m."""

    def __init__(
        self, x0: npt.ArrayLike, clients_per_round: int, lr: float = 1.0, beta: float = 0.9, **common: Any
    ) -> None:
        super().__init__(x0, clients_per_round, Momentum(lr, beta), **common)


class _Adaptive(_Synchronous):
    """The mean delta into an optimizer with two moments."""

    optimizer_of: type[Adam]

    def __init__(
        self,
        x0: npt.ArrayLike,
        clients_per_round: int,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        bias_correction: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(x0, clients_per_round, self.optimizer_of(lr, betas, eps, bias_correction), **common)


class FedAdam(_Adaptive):
    optimizer_of = Adam


class FedYogi(_Adaptive):
    optimizer_of = Yogi


class FedAMS(_Adaptive):
    """FedAMS, option 1."""

    optimizer_of = AMSGrad


class FedAdagrad(_Synchronous):
    """The mean delta into Adagrad."""

    def __init__(
        self, x0: npt.ArrayLike, clients_per_round: int, lr: float, beta: float = 0.9, eps: float = 1e-8, **common: Any
    ) -> None:
        super().__init__(x0, clients_per_round, Adagrad(lr, beta, eps), **common)


def fedprox_gradient(gradient: Vector, y: Vector, x_t: Vector, mu: float) -> Vector:
    """Gradient at y of f_i(y) + (mu/2)*||y - x_t||^2   (003 Eq. 39)."""
    return gradient + mu * (y - x_t)
