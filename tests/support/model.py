"""A whole server by docs/algorithms.md, in float64: written from the formulas, without a line of the package.

Parts are plain data, ``{"name": "Adam", "lr": 0.1, ...}``, as :class:`fastagg.Server` takes them, and settings are its
keyword arguments. ``Lion``, ``HalfLife``, ``Rare`` and ``Trail`` are rules of a user's own (tests/fuzz/own.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Part = Mapping[str, Any]
Buffers = tuple[Vector, int] | None  # running statistics, and a counter
MEANS = "Buffer", "Cohort", "CosineBuffer", "Robust"  # directions with rounds
IMMEDIATE = "Single", "Aligned", "Mixing", "Trail"  # a step is made of one update, and its size has that one's weight


class Refused(Exception):
    """The name of the error that a server raises. Nothing has changed."""


class Receipt(NamedTuple):
    applied: bool
    version: int
    delay: int
    step_size: float | None
    norm: float
    weight: float


@dataclass(eq=False)
class Task:
    client: Any
    version: int
    sent: Vector  # the model that went out
    local_steps: int | None
    ends: float
    end: str = ""  # the error of a later answer


@dataclass
class Answer:
    """An update after clipping. Of a leaf's sum: the mean of ``count`` updates, whose share is the sum of theirs."""

    client: Any
    update: Vector
    version: int
    delay: int
    share: float
    count: int = 1
    weight: float = 1.0
    control: Vector | None = None


class Optimizer:
    def __init__(self, part: Part, size: int) -> None:
        self.part, self.steps = part, 0
        self.m: Vector = np.zeros(size)
        self.v: Vector = np.full(size, float(part.get("initial", 0.0)))
        self.vhat = self.v

    @property
    def ahead(self) -> Vector:
        """What a look-ahead adds to the model, over the learning rate."""
        return self.part["momentum"] * self.m if self.part.get("look_ahead") else 0.0 * self.m

    def step(self, x: Vector, d: Vector, lr: float) -> Vector:
        p, self.steps = self.part, self.steps + 1
        if p.get("decoupled_weight_decay"):
            x = (1 - lr * p["weight_decay"]) * x
        else:
            d = d - p.get("weight_decay", 0.0) * x
        return x + lr * self.towards(p, d)

    def towards(self, p: Part, d: Vector) -> Vector:
        name, mu = p["name"], p.get("momentum", p.get("beta", 0.0))
        if name == "SGD":
            return d
        if name == "Momentum":
            self.m = mu * self.m + d
            return self.m
        if name == "Nesterov":
            self.m = mu * self.m + (1 - p["dampening"]) * d
            return d + mu * self.m
        if name == "DelayedNesterov":
            along, self.v = d / p["period"], self.v + d
            if self.steps % p["period"] == 0:
                self.m, self.v = mu * self.m + self.v / p["period"], np.zeros_like(d)
                along = along + mu * self.m
            return along
        if name == "Lion":
            along = np.sign(p["beta1"] * self.m + (1 - p["beta1"]) * d)
            self.m = p["beta2"] * self.m + (1 - p["beta2"]) * d
            return along
        b1, b2 = p.get("betas", (mu, 0.0))
        self.m = b1 * self.m + (1 - b1) * d
        if name == "Adagrad":
            self.v = self.v + d * d
        elif name == "Yogi":
            self.v = self.v - (1 - b2) * d * d * np.sign(self.v - d * d)
        else:
            self.v = b2 * self.v + (1 - b2) * d * d
        self.vhat = np.maximum(self.vhat, self.v)
        r1, r2 = (1 - b1**self.steps, 1 - b2**self.steps) if p.get("bias_correction") else (1.0, 1.0)
        first = b1 * self.m + (1 - b1) * d if name == "Lookahead" else self.m
        second = (self.vhat if name == "AMSGrad" else self.v) / r2
        return first / r1 / (np.sqrt(second + p.get("eps_root", 0.0)) + p["eps"])


def weight_of(p: Part, delay: int, taken_part: int) -> float | None:
    """s(tau); None: the update is dropped."""
    name = p["name"]
    if name == "Hinge":
        return 1.0 if delay <= p["b"] else 1 / (p["a"] * (delay - p["b"]) + 1)
    if name == "Polynomial":
        return float((delay + 1) ** -p["a"])
    if name == "CosineGate":
        along = min(delay / p["cutoff"], 1.0)
        return math.exp(-p["alpha"] * delay) * (1 + math.cos(math.pi * along)) / 2
    if name == "Cutoff":
        return 1.0 if delay < p["delay"] else None
    if name == "HalfLife":
        return float(0.5 ** (delay / p["versions"]))
    return float((1 + taken_part) ** -0.5) if name == "Rare" else 1.0


def rate_of(p: Part, lr: float, delays: Sequence[int]) -> float:
    """The learning rate of a step with updates of these delays."""
    longest = max(delays)
    if p["name"] == "HalfLife":
        return lr / 10 if longest > p["most"] else lr
    if p["name"] != "DelayAdaptive" or longest <= p["threshold"]:
        return lr
    return float({
        "scaled": min(lr, lr / longest), "reciprocal": min(lr, 1 / longest), "threshold": lr * p["threshold"] / longest,
        "lipschitz": min(lr, 1 / (4 * (p.get("lipschitz") or 1) * longest)), "drop": 0.0,
    }[p["rule"]])  # fmt: skip


def robust(p: Part, u: Vector) -> Vector:
    """What a robust rule makes of the rows of u."""
    rule, n, f = p["rule"], len(u), p.get("f", 0)
    if rule == "median":
        return np.median(u, axis=0)
    if rule == "trimmed":
        cut = int(p["trim"] * n)
        return np.sort(u, axis=0)[cut : n - cut].mean(axis=0)
    if n < {"mean_around_median": 2 * f + 1, "krum": 2 * f + 3, "multi_krum": 2 * f + 3}.get(rule, 0):
        raise Refused("ConfigError")
    if rule == "mean_around_median":
        nearest = np.argsort(np.abs(u - np.median(u, axis=0)), axis=0, kind="stable")
        return np.take_along_axis(u, nearest, axis=0)[: n - f].mean(axis=0)
    if rule in ("krum", "multi_krum"):
        apart = ((u[:, None] - u[None]) ** 2).sum(axis=2)
        scores = [np.sort(np.delete(apart[i], i))[: n - f - 2].sum() for i in range(n)]
        keep = 1 if rule == "krum" else p.get("keep") or n - f
        if n < keep:
            raise Refused("ConfigError")
        return u[np.argsort(scores, kind="stable")[:keep]].mean(axis=0)
    point: Vector = np.zeros(u.shape[1])
    for _ in range(p["iterations"]):
        lengths = np.linalg.norm(u - point, axis=1)
        if rule == "geometric_median":
            shares = 1 / np.maximum(p["smoothing"], lengths)
            point = shares @ u / shares.sum()
        else:
            kept = np.minimum(1.0, p["radius"] / np.maximum(lengths, 1e-300))
            point = point + (kept[:, None] * (u - point)).mean(axis=0)
    return point


class Model:
    """The server. ``store`` is what a client's row becomes when it is kept; ``sizes`` are those of the tensors."""

    def __init__(
        self, x: Vector, direction: Part, optimizer: Part, staleness: Part, *, sizes: Sequence[int] = (),
        statistics: Buffers = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.x, self.direction, self.staleness, self.settings = x.astype(float), direction, staleness, settings
        self.optimizer, self.lr, self.sizes = Optimizer(optimizer, len(x)), optimizer["lr"], sizes
        self.sign = -1.0 if direction["kind"] == "gradient" else 1.0
        self.version, self.time, self.since = 0, 0.0, math.inf
        self.history, self.tasks, self.last = [self.x], list[Task](), dict[Any, Task]()
        self.steps_of, self.taken_part = dict[Any, int](), dict[Any, int]()
        self.held, self.statistics, self.reported = list[Answer](), statistics, list[tuple[Vector, int, float]]()
        self.rows, self.shares, self.start = dict[Any, Vector](), dict[Any, float](), dict[Any, int]()
        self.before: dict[Any, Vector] = {}  # Calibrated: the rows at the start of the round
        self.sum, self.control, self.change = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
        self.store: Callable[[Any, Vector], Vector] = lambda client, row: row
        self.fragile = False  # whether the last answer was near a jump of its rule

    # -- tasks

    def dispatch(self, client: Any, version: int | None = None) -> Task:
        """The current version, or an open one that is handed on."""
        self.close_round(if_due=True)
        n = self.settings.get("num_clients")
        if n is not None and not (isinstance(client, int) and 0 <= client < n):
            raise Refused("UnknownClient")
        version = self.version if version is None else version
        task = next((task for task in self.owed(client) if task.version == version), None)
        if task is None and not self.room(client):
            raise Refused("Busy")
        steps = self.steps_of.get(client, self.staleness.get("local_steps"))
        ends = self.time + (self.settings.get("lease") or math.inf)
        if task is None:
            self.tasks.append(task := Task(client, version, self.x, steps, ends))
        task.sent, task.ends, task.local_steps = self.x + self.lr * self.optimizer.ahead, ends, steps
        self.last[client] = task
        if self.direction.get("freshness") != "gradient":
            self.start[client] = version
        return task

    def owed(self, client: Any) -> list[Task]:
        return [task for task in self.tasks if task.client == client]

    def room(self, client: Any) -> bool:
        return len(self.owed(client)) < (self.settings.get("max_open_per_client") or math.inf)

    def is_over(self, version: int, ends: float) -> bool:
        most = self.settings.get("max_delay")
        return ends <= self.time or (most is not None and self.version - version > most)

    def find(self, client: Any, version: int | None, task: Task | None = None) -> Task:
        if task is None:
            if client not in self.last:
                raise Refused("UnknownClient")
            version = self.last[client].version if version is None else version
            task = next((task for task in self.owed(client) if task.version == version), None)
        if task is None or (not task.end and self.is_over(task.version, task.ends)):
            raise Refused("UnknownVersion")
        if task.end:
            raise Refused(task.end)
        return task

    def end(self, task: Task, end: str = "UnknownVersion") -> None:
        task.end, self.tasks = end, [other for other in self.tasks if other is not task]

    def forget(self, client: Any, version: int | None = None) -> None:
        if client not in self.last:
            raise Refused("UnknownClient")
        for task in self.owed(client) if version is None else [self.find(client, version)]:
            self.end(task)
        if version is None:
            del self.last[client]
            self.steps_of.pop(client, None)

    def expire(self, before: int = 0) -> int:
        over = [task for task in self.tasks if task.version < before or self.is_over(task.version, task.ends)]
        for task in over:
            self.end(task)
        for client, task in list(self.last.items()):  # it may never come back
            if self.settings.get("num_clients") is None and not self.owed(client) and self.is_over(task.version, task.ends):
                self.forget(client)
        return len(over)

    def restart(self) -> None:
        """Leases and the time of a round begin anew."""
        for task in [*self.tasks, *self.last.values()]:
            task.ends = self.time + (self.settings.get("lease") or math.inf)
        self.since = self.time if math.isfinite(self.since) else math.inf

    # -- answers

    def receive(
        self, client: Any, updates: Sequence[tuple[Vector, Any]], version: int | None = None, *,
        task: Task | None = None, control: Vector | None = None, buffers: Buffers = None, is_sum: bool = False,
    ) -> Receipt:  # fmt: skip
        """One update with its samples, or those of a leaf's sum."""
        self.close_round(if_due=True)
        task, name, self.fragile = self.find(client, version, task), self.direction["name"], False
        if (name == "Cohort" or self.direction.get("synchronous")) and task.version != self.version:
            raise Refused("UnknownVersion")
        clipped, shares = np.array([self.clipped(u) for u, _ in updates]), [self.share(n) for _, n in updates]
        total = shares @ clipped
        size, overflow = self.direction.get("size"), self.direction.get("overflow") == "close"
        if is_sum and overflow and self.held and size and sum(a.count for a in self.held) + len(updates) > size:
            self.close_round()
        answer = Answer(client, total / (sum(shares) or 1.0) if is_sum else clipped[0], task.version,
                        self.version - task.version, sum(shares), len(updates), control=control)  # fmt: skip
        counts = answer.share > 0 or name in MEANS  # without samples it only takes a place in a round
        weight = self.weigh(answer, task) if counts else None
        norm = float(np.linalg.norm(total if is_sum else updates[0][0]))
        self.end(task, "AlreadyCounted")
        if weight is None:
            return Receipt(False, self.version, answer.delay, None, norm, 0.0)
        self.taken_part[client] = self.taken_part.get(client, 0) + 1
        answer.weight = weight
        u = self.add(answer)
        if buffers is not None and self.settings.get("buffers") != "keep" and answer.share:
            self.reported.append((*buffers, answer.share))
        if isinstance(u, str):
            if u == "idle":
                self.advance(False)
            elif math.isinf(self.since) and sum(a.count for a in self.held) >= (self.direction.get("at_least") or math.inf):
                self.since = self.time
            return Receipt(False, self.version, answer.delay, None, norm, weight)
        rate, applied = self.step(u, [answer.delay] if name not in (*MEANS, "Calibrated") else None)
        share = answer.share / self.direction["normalize"] if name == "Mixing" and self.direction.get("normalize") else 1.0
        scaled = rate * weight * share if name in IMMEDIATE else rate
        return Receipt(applied, self.version, answer.delay, scaled, norm, weight)

    def clipped(self, u: Vector) -> Vector:
        most, norm = self.settings.get("clip_norm") or math.inf, float(np.linalg.norm(u))
        return u * (most / norm) if norm > most else u

    def share(self, samples: Any) -> float:
        if self.settings["weighting"] == "uniform":
            return 1.0
        if samples is None:
            raise Refused("ConfigError")
        number = samples[0] * samples[0] / samples[1] if isinstance(samples, tuple) else samples
        return float(min(number, self.settings.get("max_samples") or math.inf))

    def weigh(self, answer: Answer, task: Task) -> float | None:
        p, norm = self.staleness, float(np.linalg.norm(answer.update))
        if p["name"] != "Euclidean":
            return weight_of(p, answer.delay, self.taken_part.get(answer.client, 0))
        if norm == 0:
            return None
        gamma = float(np.linalg.norm(self.x - self.history[answer.version])) / norm
        steps = (p["gamma_bar"] - gamma) * p["kappa"]
        self.fragile = abs(steps - round(steps)) < 1e-4 and gamma > 0
        most = p.get("max_local_steps") or math.inf
        self.steps_of[answer.client] = int(min(max((task.local_steps or 0) + math.floor(steps), 1), most))
        too_old = p.get("gamma_max") is not None and gamma > p["gamma_max"]
        return None if too_old else float(p["lam"] / (gamma + p["eps"]))

    # -- directions: the vector u, in the sign of the updates, or "wait", or "idle": a version without a step

    def add(self, a: Answer) -> Vector | str:
        p, name = self.direction, self.direction["name"]
        if name == "Single":
            return a.weight * a.update
        if name == "Mixing":
            share = a.share / p["normalize"] if p.get("normalize") else 1.0
            return a.weight * share * (self.history[a.version] + a.update - self.x)
        if name == "Aligned":
            return a.weight * p["rho"] * self.aligned(p, a.update)
        if name == "Trail":
            self.sum, self.held = self.sum + a.weight * a.update, [*self.held, a]
            if len(self.held) < p["size"]:
                return "wait"
            u, self.sum, self.held = self.sum / p["size"], 0.25 * a.weight * a.update, []
            return u
        if name in MEANS:
            return self.buffered(a)
        if name == "Calibrated":
            return self.calibrated(p, a)
        if name == "Differences":
            self.sum, self.shares[a.client] = self.sum + a.update, 1.0
            return "wait" if self.waits() else self.sum / len(self.shares)
        warm = p["warmup"] == "partial" or len(self.rows) == p["num_clients"]
        self.rows[a.client], self.shares[a.client] = self.store(a.client, a.weight * a.update), a.share
        if p.get("freshness") == "gradient":
            self.start[a.client] = a.version
        fresh = [i for i in self.rows if not warm or self.version - self.start[i] <= p.get("max_delay", math.inf)]
        if self.waits() or not fresh:
            return "wait" if self.waits() else "idle"
        return sum(self.shares[i] * self.rows[i] for i in fresh) / sum(self.shares[i] for i in fresh)  # type: ignore[return-value]

    def waits(self) -> bool:
        return self.direction["warmup"] == "full" and len(self.shares) < self.direction["num_clients"]

    def aligned(self, p: Part, u: Vector) -> Vector:
        turned, ends = u.copy(), np.cumsum(self.sizes)
        for begin, end in zip(ends - self.sizes, ends, strict=True):
            d, m = u[begin:end], self.sign * self.optimizer.m[begin:end]
            length, of_m = float(np.linalg.norm(d)), float(np.linalg.norm(m))
            if length < p["eps"] or of_m < p["eps"]:
                continue
            c, conf = float(d @ m) / (length * of_m), length / (length + p["kappa"] * of_m + p["eps"])
            self.fragile |= min(abs(c), abs(c - p["c_ok"])) < 1e-5
            if c < 0:
                turned[begin:end] = d - min(-p["k_s"] * c * conf, p["beta_max"]) * c * length * m / of_m
            elif c < p["c_ok"]:
                l = min(p["k_d"] * (1 - c) * conf, 1.0)  # noqa: E741
                mixed = (1 - l) * d / length + l * m / of_m
                turned[begin:end] = length * mixed / np.linalg.norm(mixed)
        return turned

    def buffered(self, a: Answer) -> Vector | str:
        if self.direction["name"] == "CosineBuffer":
            moved = self.x - self.history[a.version]
            product = float(np.linalg.norm(moved) * np.linalg.norm(a.update))
            cosine = float(moved @ a.update) / product if product else 0.0
            a.share *= max(cosine, 0.1) if a.delay else 1.0
            self.change = self.change + (0.0 if a.control is None else a.share * a.control)
        self.held = [*self.held, a]
        size = self.direction["size"]
        if size is None or sum(a.count for a in self.held) < size:
            return "wait"
        return self.mean()

    def mean(self) -> Vector | str:
        """What the buffer becomes."""
        p, held = self.direction, self.held
        if self.settings.get("deterministic"):
            held = sorted(held, key=lambda a: (isinstance(a.client, str), a.client))
        if p["name"] == "Robust":
            return robust(p, np.array([a.weight * a.update for a in held]))
        by, shares = p.get("normalize", "buffer"), sum(a.share for a in held)
        self.control, self.change = self.control + self.change / (shares or 1.0), 0.0 * self.change
        weights = sum(a.share * a.weight for a in held)
        if (weights if by == "weights" else shares) == 0:
            return "idle"
        divisor = {"buffer": shares, "weights": weights}.get(by, by)
        return np.sum([a.share * a.weight * a.update for a in held], axis=0) / divisor  # type: ignore[no-any-return]

    def calibrated(self, p: Part, a: Answer) -> Vector | str:
        zero, n = np.zeros(len(self.x)), p["num_clients"]
        old = self.before if p["repeat"] == "start" else self.rows
        self.sum = self.sum + a.share * (a.weight * a.update - old.get(a.client, zero))
        row = self.store(a.client, a.weight * a.update)
        self.rows, self.held = {**self.rows, a.client: row}, [*self.held, a]
        if len(self.held) < p["size"]:
            return "wait"
        distinct = {a.client: a.share for a in self.held}.values()
        divisor = sum(distinct) if p["repeat"] == "start" else sum(a.share for a in self.held)
        u = sum(self.before.values(), zero) / n + self.sum / divisor
        self.before, self.sum = self.rows, zero
        return u

    # -- steps

    def step(self, u: Vector, delays: list[int] | None = None) -> tuple[float, bool]:
        rate = rate_of(self.staleness, self.lr, delays or [self.version - a.version for a in self.held])
        self.x = self.optimizer.step(self.x, self.sign * u, rate)
        applied = rate != 0 or self.lr == 0
        self.advance(applied)
        return rate, applied

    def advance(self, applied: bool) -> None:
        """The next version. Running statistics follow a step; those that came with none are dropped."""
        if applied and self.reported:
            values, counters, shares = zip(*self.reported, strict=True)
            how = self.settings["buffers"]
            weights = shares if how == "weighted" else [float(how == "mean")] * (len(shares) - 1) + [1.0]
            self.statistics = np.average(values, axis=0, weights=weights), max(counters)
        self.reported, self.version, self.since = [], self.version + 1, math.inf
        self.held = [] if self.direction["name"] != "Trail" else self.held
        self.history.append(self.x)

    def close_round(self, *, if_due: bool = False) -> float | None:
        """The learning rate of the step; None if there was none."""
        name = self.direction["name"]
        due = self.time - self.since >= (self.direction.get("grace") or 0.0)
        if name not in MEANS or name == "CosineBuffer" or not self.held or (if_due and not due):
            return None
        u = self.mean()
        if isinstance(u, str):
            return self.advance(False)
        return self.step(u)[0]
