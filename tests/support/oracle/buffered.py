"""Buffered rules: the server waits for M updates, then steps once.

FedBuff (002 Alg. a.2), FADAS (000 Alg. 1, Eqs. 3, 4, 77), CA2FL (002 Alg. a.3), FedAC (baseline of 004, a
reconstruction).
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .core import Arrival, Composed, Direction, Vector
from .optimizers import SGD, AMSGrad, Optimizer
from .policies import DelayAdaptive

Store = Callable[[int, Vector], Vector]


class Buffer(Direction):
    """acc += s(tau_i)*Delta_i; at M updates u = acc/M   (002 Alg. a.2 lines 6-14; 000 Alg. 1 lines 4-9).

    With sample weights u = sum(n_i*s_i*Delta_i)/sum(n_i): the staleness weights are not normalised away, unless
    normalize is "weights" (FLSim's weighted mean: sum(n_i*s_i)) or a number (APPFL's share among all clients).

    A leaf's sum counts for as many updates as it is made of. overflow: one for which the round has no room
    "take"    ends it, so u is the mean of more than M
    "close"   ends it as it is, and begins the next one
    """

    def __init__(
        self,
        size: int,
        overflow: Literal["take", "close"] = "take",
        normalize: Literal["buffer", "weights"] | float = "buffer",
    ) -> None:
        self.size, self.overflow, self.normalize = size, overflow, normalize
        self.held: list[Arrival] = []

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        self.held.append(arrival)
        if sum(a.count for a in self.held) < self.size:
            return "wait"
        u = self.mean(server)
        self.held = []
        return u

    def close_before(self, count: int) -> Vector | None:
        if self.overflow == "take" or not self.held or sum(a.count for a in self.held) + count <= self.size:
            return None
        u = self.plain()
        self.held = []
        return u

    def mean(self, server: Composed) -> Vector:
        """What the full buffer becomes."""
        return self.plain()

    def plain(self) -> Vector:
        total = np.sum([a.samples * a.weight * a.update for a in self.held], axis=0)
        if self.normalize == "buffer":
            return total / sum(a.samples for a in self.held)
        if self.normalize == "weights":
            return total / sum(a.samples * a.weight for a in self.held)
        return total / float(self.normalize)


class Robust(Buffer):
    """What a rule makes of M updates s(tau_i)*Delta_i.

    median, trimmed     of every element (Yin et al. 2018)
    mean_around_median  the mean of the M - f values of an element nearest to the median (Xie et al. 2018)
    geometric_median    3 turns of v <- sum(beta_i*u_i)/sum(beta_i), beta_i = 1/max(1e-6, |u_i - v|), from v = 0
    centered_clip       3 turns of v <- v + mean of (u_i - v)*min(1, radius/|u_i - v|), from v = 0
    """

    def __init__(self, rule: str, size: int, trim: float = 0.1, f: int = 0, radius: float = 1.0) -> None:
        super().__init__(size)
        self.rule, self.trim, self.f, self.radius = rule, trim, f, radius

    def plain(self) -> Vector:
        u = np.array([a.weight * a.update for a in self.held])
        if self.rule == "median":
            return np.median(u, axis=0)
        if self.rule == "trimmed":
            cut = int(self.trim * len(u))
            return np.sort(u, axis=0)[cut : len(u) - cut].mean(axis=0)
        if self.rule == "mean_around_median":
            nearest = np.argsort(np.abs(u - np.median(u, axis=0)), axis=0, kind="stable")
            return np.take_along_axis(u, nearest, axis=0)[: len(u) - self.f].mean(axis=0)
        v = np.zeros(u.shape[1])
        for _ in range(3):
            lengths = np.linalg.norm(u - v, axis=1)
            if self.rule == "geometric_median":
                beta = 1.0 / np.maximum(1e-6, lengths)
                v = beta @ u / beta.sum()
            else:
                kept = np.minimum(1.0, self.radius / np.maximum(lengths, 1e-300))
                v = v + (kept[:, None] * (u - v)).mean(axis=0)
        return v


class Calibrated(Direction):
    """CA2FL (002 Alg. a.3): u = h + acc/|S|, acc = sum(Delta_i - h_i); then h_i = Delta_i, h = mean_i h_i.

    repeat="start"   h_i and h are those of the start of the round, S the distinct clients (the paper)
    repeat="latest"  calibrate a repeat against the cache as it stands, divide acc by M (public programs)
    store            what a row becomes when it is stored (quantisation), given (client, row)

    With sample weights only the buffered mean is weighted, sum(n_i*(Delta_i - h_i)) over the sum of n_i (of
    distinct clients, with their last n_i, in the paper's reading); h stays the plain mean over all clients.
    """

    def __init__(
        self, num_clients: int, size: int, repeat: Literal["start", "latest"] = "start", store: Store | None = None
    ) -> None:
        self.num_clients, self.size, self.repeat = num_clients, size, repeat
        self.store: Store = (lambda client, row: row) if store is None else store
        self.cache: dict[int, Vector] = {}
        self.held: list[Arrival] = []
        self.calibrated: list[Vector] = []
        self.before: dict[int, Vector] = {}

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        zeros = np.zeros_like(server.x)
        if not self.held:
            self.before = dict(self.cache)
        against = self.before if self.repeat == "start" else self.cache
        delta = arrival.weight * arrival.update
        self.calibrated.append(arrival.samples * (delta - against.get(arrival.client, zeros)))
        self.cache[arrival.client] = self.store(arrival.client, delta)
        self.held.append(arrival)
        if len(self.held) < self.size:
            return "wait"

        h = sum((self.before.get(i, zeros) for i in range(self.num_clients)), zeros) / self.num_clients
        acc = sum(self.calibrated, zeros)
        if self.repeat == "start":
            divisor = sum({a.client: a.samples for a in self.held}.values())
        else:
            divisor = sum(a.samples for a in self.held)
        self.held, self.calibrated = [], []
        return h + acc / divisor


class CosineBuffer(Buffer):
    """FedAC's weights: r_i = max(cos(x_t - x_s, Delta_i), 0.1), 1 when tau_i = 0; w_i = r_i/sum r;
    u = sum w_i Delta_i. The cosine with a zero vector counts as 0. With sample weights r_i becomes n_i*r_i.

    control: C, to which a full buffer adds sum w_i*(c_new - c_i).
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.control: Vector | float = 0.0
        self.weights: list[float] = []

    def mean(self, server: Composed) -> Vector:
        r = [a.samples * self._affinity(server.x - server.history[a.version], a) for a in self.held]
        self.weights = [ri / sum(r) for ri in r]
        for w, a in zip(self.weights, self.held, strict=True):
            if a.control_delta is not None:
                self.control = self.control + w * a.control_delta
        rows = [w * a.weight * a.update for w, a in zip(self.weights, self.held, strict=True)]
        return sum(rows, np.zeros_like(server.x))

    @staticmethod
    def _affinity(moved: Vector, arrival: Arrival) -> float:
        if arrival.delay == 0:
            return 1.0
        norms = float(np.linalg.norm(moved)) * float(np.linalg.norm(arrival.update))
        cosine = float(moved @ arrival.update) / norms if norms > 0.0 else 0.0
        return max(cosine, 0.1)


class FedACOptimizer(Optimizer):
    """m <- b1*m + (1-b1)*D; v <- b2*v + (1-b2)*D*D; look ahead mhat = b1*m + (1-b1)*D;
    x <- x + eta*mhat/(sqrt(v)+eps)."""

    def __init__(self, lr: float, betas: tuple[float, float] = (0.6, 0.9), eps: float = 1e-8) -> None:
        super().__init__(lr)
        self.b1, self.b2 = betas
        self.eps = eps

    def begin(self, zeros: Vector) -> None:
        self.m = zeros
        self.v = zeros + self.initial

    def move(self, x: Vector, d: Vector, lr: float) -> Vector:
        self.m = self.b1 * self.m + (1 - self.b1) * d
        self.v = self.b2 * self.v + (1 - self.b2) * d * d
        ahead = self.b1 * self.m + (1 - self.b1) * d
        return x + lr * ahead / (np.sqrt(self.v + self.eps_root) + self.eps)


class FedBuff(Composed):
    """002 Alg. a.2, without differential privacy: x <- x + eta*(1/M)*sum Delta_i."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float = 1.0,
        buffer_size: int = 10,
        normalize: Literal["buffer", "weights"] | float = "buffer",
        **common: Any,
    ) -> None:
        super().__init__(x0, Buffer(buffer_size, normalize=normalize), SGD(lr), **common)


class FADAS(Composed):
    """000 Alg. 1: FedBuff's buffer into AMSGrad (Eq. 3), delay-adaptive step (Eq. 4 or Eq. 77)."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float = 1e-3,
        buffer_size: int = 5,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        delay_threshold: float | None = 10,
        delay_rule: Literal["scaled", "reciprocal"] = "scaled",
        bias_correction: bool = False,
        **common: Any,
    ) -> None:
        optimizer = AMSGrad(lr, betas, eps, bias_correction)
        super().__init__(x0, Buffer(buffer_size), optimizer, DelayAdaptive(delay_threshold, delay_rule), **common)


class CA2FL(Composed):
    """002 Alg. a.3. repeat="start" is the paper's reading, "latest" that of public programs."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        num_clients: int,
        buffer_size: int,
        lr: float = 1.0,
        repeat: Literal["start", "latest"] = "start",
        store: Store | None = None,
        **common: Any,
    ) -> None:
        super().__init__(x0, Calibrated(num_clients, buffer_size, repeat, store), SGD(lr), **common)


class FedAC(Composed):
    """FedAC, a reconstruction: baseline of 004 whose own paper's equations could not be had."""

    def __init__(
        self,
        x0: npt.ArrayLike,
        lr: float,
        buffer_size: int,
        betas: tuple[float, float] = (0.6, 0.9),
        eps: float = 1e-8,
        **common: Any,
    ) -> None:
        self.cosine = CosineBuffer(buffer_size)
        super().__init__(x0, self.cosine, FedACOptimizer(lr, betas, eps), **common)

    @property
    def control(self) -> Vector:
        """C, zero at the start."""
        return np.zeros_like(self.x) + self.cosine.control

    @staticmethod
    def correct(
        x_s: Vector, y: Vector, control: Vector, c_i: Vector, epochs: int, client_lr: float
    ) -> tuple[Vector, Vector]:
        """The client's part after local training: (Delta, c_new)."""
        c_new = (x_s - y) / (epochs * client_lr) - (control - c_i)
        return y - client_lr * (control - c_i) - x_s, c_new
