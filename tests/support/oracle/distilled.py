"""FedEcho (004 Alg. 1): FedBuff, then Q distillation steps towards the mean of all clients' latest logits.

The classifier is a tanh network with one hidden layer, its gradient written out; batches are the whole set.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

from .buffered import Buffer
from .core import Arrival, Composed, Vector
from .optimizers import Optimizer


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


class EchoBuffer(Buffer):
    """A buffer that keeps every client's latest logits (lines 4 and 5)."""

    def __init__(self, size: int, network: TanhNetwork, unlabelled: Vector) -> None:
        super().__init__(size)
        self.network, self.unlabelled = network, unlabelled
        self.logits: dict[int, Vector] = {}

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        model = server.history[arrival.version] + arrival.update
        self.logits[arrival.client] = self.network.logits(model, self.unlabelled)
        return super().add(server, arrival)


class Distilled(Optimizer):
    """x + eta*D, then Q steps of bias-corrected Adam on the clipped gradient of f_d (lines 10 to 15, Eq. 2)."""

    def __init__(
        self,
        lr: float,
        direction: EchoBuffer,
        *,
        steps: int,
        alpha: tuple[float, float],
        clip: float | None,
        distill_lr: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(lr)
        self.direction, self.distill_steps, self.alpha, self.clip = direction, steps, alpha, clip
        self.distill_lr, self.betas, self.eps = distill_lr, betas, eps

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        network, u = self.direction.network, self.direction.unlabelled
        student = x + lr * d
        y = np.mean(list(self.direction.logits.values()), axis=0)
        m, v = np.zeros_like(student), np.zeros_like(student)
        b1, b2 = self.betas
        for q in range(1, self.distill_steps + 1):
            _, dz = loss_and_gradient(y, network.logits(student, u), *self.alpha)
            g = network.gradient(student, u, dz)
            norm = float(np.linalg.norm(g))
            if self.clip is not None and norm > self.clip:
                g = g * (self.clip / norm)
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            student = student - self.distill_lr * (m / (1 - b1**q)) / (np.sqrt(v / (1 - b2**q)) + self.eps)
        return student


def FedEcho(
    x0: npt.ArrayLike,
    network: TanhNetwork,
    unlabelled: Vector,
    *,
    lr: float = 1.0,
    buffer_size: int = 5,
    steps: int = 1,
    alpha: tuple[float, float] = (0.2, 0.8),
    clip: float | None = 5.0,
    distill_lr: float = 3e-6,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Composed:
    direction = EchoBuffer(buffer_size, network, unlabelled)
    how = {"steps": steps, "alpha": alpha, "clip": clip, "distill_lr": distill_lr, "betas": betas, "eps": eps}
    return Composed(x0, direction, Distilled(lr, direction, **how))  # type: ignore[arg-type]


__all__ = ["FedEcho", "TanhNetwork", "loss_and_gradient", "softmax"]
