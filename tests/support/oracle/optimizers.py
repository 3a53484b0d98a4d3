"""Server optimizers, one step each, exactly as the section "Server optimizers" of the specification says.

State m = v = vhat = 0 at the start, no bias correction unless asked for, eps outside the square root. `D` is
added to the model: a gradient rule hands in D = -u.

Sources: FADAS Eq. 3 (000) for AMSGrad; Adam, Yogi and Adagrad as the adaptive federated optimizers that 000
compares with; momentum as FedAvgM.
"""

from typing import Self

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Optimizer:
    """Base: `lr` is eta; `steps` counts the steps made, so that the round of the next one is steps + 1.

    weight_decay  lambda. The pseudo-gradient is g = -D, and g + lambda*x takes its place (Adam with L2); or, decoupled,
                  x shrinks by eta_t*lambda*x beside the step (Loshchilov and Hutter 2019, AdamW and SGDW)
    eps_root      under the root (optax's scale_by_adam)
    initial       of v, and so of its maximum (Reddi et al. 2021, Algorithm 2: tau^2)
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self.steps = 0
        self.weight_decay, self.decoupled, self.eps_root, self.initial = 0.0, False, 0.0, 0.0

    def extended(self, weight_decay: float = 0.0, decoupled_weight_decay: bool = False, **second: float) -> Self:
        """This optimizer with weight decay, and with what goes with a second moment."""
        self.weight_decay, self.decoupled = weight_decay, decoupled_weight_decay
        self.eps_root, self.initial = second.get("eps_root", 0.0), second.get("initial", 0.0)
        return self

    def step(self, x: Vector, d: Vector, lr: float) -> Vector:
        """The model after one step along D with learning rate eta_t = lr."""
        if self.steps == 0:
            self.begin(np.zeros_like(x))
        self.steps += 1
        if self.decoupled:
            return self.move(x, d, lr) - lr * self.weight_decay * x
        return self.move(x, -(-d + self.weight_decay * x), lr)

    def begin(self, zeros: Vector) -> None:
        """Make the state."""

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        """The rule itself."""
        raise NotImplementedError


class SGD(Optimizer):
    """x <- x + eta*D."""

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        return x + lr * d


class Momentum(Optimizer):
    """m <- b1*m + D ; x <- x + eta*m   (FedAvgM: no factor 1-b1)."""

    def __init__(self, lr: float, beta: float = 0.9) -> None:
        super().__init__(lr)
        self.b1 = beta

    def begin(self, zeros: Vector) -> None:
        self.m = zeros

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        self.m = self.b1 * self.m + d
        return x + lr * self.m


class Adam(Optimizer):
    """x <- x + eta*m/(sqrt(v)+eps).

    bias_correction: x <- x + eta/(1-b1^r) * m/(sqrt(v/(1-b2^r)) + eps), this is step r = 1, 2...
    """

    def __init__(
        self, lr: float, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8, bias_correction: bool = False
    ) -> None:
        super().__init__(lr)
        self.b1, self.b2 = betas
        self.eps = eps
        self.bias_correction = bias_correction

    def begin(self, zeros: Vector) -> None:
        self.m = zeros
        self.v = zeros + self.initial

    def second_moment(self, d: Vector) -> Vector:
        """Update v; what stands under the square root."""
        self.v = self.b2 * self.v + (1 - self.b2) * d * d
        return self.v

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        self.m = self.b1 * self.m + (1 - self.b1) * d
        second, r = self.second_moment(d), self.steps
        if not self.bias_correction:
            return x + lr * self.m / (np.sqrt(second + self.eps_root) + self.eps)
        hats = self.m / (1 - self.b1**r), second / (1 - self.b2**r)
        return x + lr * hats[0] / (np.sqrt(hats[1] + self.eps_root) + self.eps)


class AMSGrad(Adam):
    """FADAS Eq. 3 (000), FedAMS option 1: vhat <- max(vhat, v) before any correction, vhat under the root."""

    def begin(self, zeros: Vector) -> None:
        super().begin(zeros)
        self.vhat = self.v.copy()

    def second_moment(self, d: Vector) -> Vector:
        self.vhat = np.maximum(self.vhat, super().second_moment(d))
        return self.vhat


class Yogi(Adam):
    """v <- v - (1-b2)*D*D*sign(v - D*D), then as Adam   (FedYogi)."""

    def second_moment(self, d: Vector) -> Vector:
        self.v = self.v - (1 - self.b2) * d * d * np.sign(self.v - d * d)
        return self.v


class Adagrad(Adam):
    """v <- v + D*D, then as Adam   (FedAdagrad). v is a sum, so there is nothing for b2 to correct."""

    def __init__(self, lr: float, beta: float = 0.9, eps: float = 1e-8) -> None:
        super().__init__(lr, (beta, 0.0), eps)

    def second_moment(self, d: Vector) -> Vector:
        self.v = self.v + d * d
        return self.v


class Nesterov(Optimizer):
    """m <- mu*m + (1-dampening)*D ; x <- x + eta*(D + mu*m)   (DiLoCo 2311.08105; HeLoCo 2606.00271, Eqs. 18, 19: the
    dampening is mu)."""

    def __init__(self, lr: float, momentum: float = 0.9, dampening: float = 0.0) -> None:
        super().__init__(lr)
        self.mu, self.dampening = momentum, dampening

    def begin(self, zeros: Vector) -> None:
        self.m = zeros

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        self.m = self.mu * self.m + (1 - self.dampening) * d
        return x + lr * (d + self.mu * self.m)


class DelayedNesterov(Optimizer):
    """Async Local-SGD (2401.09135), Algorithm 3 with c = 0: every step x <- x + eta*D/N, and after N of them
    m <- mu*m + their mean ; x <- x + eta*mu*m."""

    def __init__(self, lr: float, momentum: float = 0.9, period: int = 10) -> None:
        super().__init__(lr)
        self.mu, self.period = momentum, period

    def begin(self, zeros: Vector) -> None:
        self.m, self.since = zeros, list[Vector]()

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        self.since.append(d)
        x = x + lr * d / self.period
        if len(self.since) == self.period:
            self.m = self.mu * self.m + np.sum(self.since, axis=0) / self.period
            self.since = []
            x = x + lr * self.mu * self.m
        return x
