"""FedEcho (004 Alg. 1): FedBuff, then Q distillation steps towards the mean of all clients' latest logits.

The classifier is a tanh network with one hidden layer, its gradient written out; batches are the whole set.
"""

from typing import Any

import numpy as np

from support.book import Vector
from support.formulas import Optimizer
from support.model import Answer, Model


class TanhNetwork:
    """z = W2 tanh(W1 x + b1) + b2, parameters in the order W1, b1, W2, b2, weights by output then input."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        self.shapes = [(hidden, inputs), (hidden,), (classes, hidden), (classes,)]
        self.size = sum(int(np.prod(s)) for s in self.shapes)

    def unpack(self, flat: Vector) -> list[Vector]:
        ends = np.cumsum([int(np.prod(s)) for s in self.shapes])[:-1]
        return [part.reshape(s) for part, s in zip(np.split(flat, ends), self.shapes, strict=True)]

    def logits(self, flat: Vector, x: Vector) -> Vector:
        w1, b1, w2, b2 = self.unpack(flat)
        return np.tanh(x @ w1.T + b1) @ w2.T + b2

    def gradient(self, flat: Vector, x: Vector, dz: Vector) -> Vector:
        """Of a loss whose gradient with respect to the logits is dz."""
        w1, b1, w2, _ = self.unpack(flat)
        h = np.tanh(x @ w1.T + b1)
        da = (dz @ w2) * (1.0 - h * h)
        return np.concatenate([(da.T @ x).ravel(), da.sum(axis=0), (dz.T @ h).ravel(), dz.sum(axis=0)])


def softmax(z: Vector) -> Vector:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss_and_gradient(y: Vector, z: Vector, alpha_min: float, alpha_max: float) -> tuple[float, Vector]:
    """Eqs. 3 and 4: f_d and its gradient with respect to the student's logits z, for teacher logits y."""
    p, q = softmax(y), softmax(z)
    classes = y.shape[1]
    entropy = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(axis=1)
    uncertainty = entropy.mean() / np.log(classes) if classes > 1 else 0.0
    alpha = uncertainty * alpha_max + (1.0 - uncertainty) * alpha_min
    onehot = np.eye(classes)[y.argmax(axis=1)]
    kl = np.where(p > 0, p * (np.log(np.where(p > 0, p, 1.0)) - np.log(q)), 0.0).sum(axis=1)
    ce = -(onehot * np.log(q)).sum(axis=1)
    return float((alpha * kl + (1 - alpha) * ce).mean()), (q - alpha * p - (1 - alpha) * onehot) / len(y)


class Echo(Model):
    """A buffer that keeps every client's latest logits (lines 4 and 5)."""

    def __init__(self, x: Vector, network: TanhNetwork, unlabelled: Vector, size: int, lr: float, **how: Any) -> None:
        direction = {"name": "Buffer", "kind": "delta", "size": size}
        super().__init__(x, direction, {"name": "SGD", "lr": lr}, {"name": "Constant"}, weighting="uniform")
        self.network, self.unlabelled = network, unlabelled
        self.logits: dict[int, Vector] = {}
        self.optimizer = Distilled(self, lr, **how)

    def add(self, a: Answer, s: float) -> Vector | str:
        self.logits[a.client] = self.network.logits(self.history[a.version] + a.update, self.unlabelled)
        return super().add(a, s)


class Distilled(Optimizer):
    """x + eta*D, then Q steps of bias-corrected Adam on the clipped gradient of f_d (lines 10 to 15, Eq. 2)."""

    def __init__(
        self, echo: Echo, lr: float, *, steps: int, alpha: tuple[float, float], clip: float | None, distill_lr: float,
        eps: float,
    ) -> None:  # fmt: skip
        super().__init__({"name": "SGD", "lr": lr}, len(echo.x))
        self.echo, self.count, self.alpha, self.clip = echo, steps, alpha, clip
        self.adam = {"name": "Adam", "betas": (0.9, 0.999), "eps": eps, "bias_correction": True}
        self.distill_lr = distill_lr

    def step(self, x: Vector, d: Vector, lr: float) -> Vector:
        network, u = self.echo.network, self.echo.unlabelled
        student, adam = super().step(x, d, lr), Optimizer(self.adam, len(x))
        y = np.mean(list(self.echo.logits.values()), axis=0)
        for _ in range(self.count):
            g = network.gradient(student, u, loss_and_gradient(y, network.logits(student, u), *self.alpha)[1])
            norm = float(np.linalg.norm(g))
            g = g * (self.clip / norm) if self.clip is not None and norm > self.clip else g
            student = adam.step(student, -g, self.distill_lr)
        return student
