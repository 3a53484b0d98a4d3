"""A whole server by docs/algorithms.md, in float64: written from the formulas, without a line of the package.

Parts are plain data, ``{"name": "Adam", "lr": 0.1, ...}``, as :class:`fastagg.Server` takes them, and settings are its
keyword arguments. ``Lion``, ``HalfLife``, ``Rare`` and ``Trail`` are rules of a user's own (tests/fuzz/own.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from support.book import Book, Refused, Task, Vector
from support.formulas import WEIGHTS, Optimizer, Part, rate_of, robust, robust_statistics

Buffers = tuple[Vector, int] | None  # running statistics, and a counter
ROUNDS = "Buffer", "Cohort", "CosineBuffer", "Robust"
IMMEDIATE = "Single", "Aligned", "Mixing", "Trail"  # a step is made of one update, and its size has that one's weight


class Receipt(NamedTuple):
    applied: bool
    version: int
    delay: int
    step_size: float | None
    norm: float
    weight: float


@dataclass
class Answer:
    """An update after clipping. Of a leaf's sum: the mean of ``count`` updates, whose share is the sum of theirs."""

    client: Any
    update: Vector
    version: int
    delay: int
    share: float
    count: int = 1
    control: Vector | None = None
    weight: float = 1.0


class Model(Book):
    """The server. ``store`` is what a client's row becomes when it is kept; ``sizes`` are those of the tensors."""

    def __init__(
        self, x: Vector, direction: Part, optimizer: Part, staleness: Part, *, sizes: Sequence[int] = (),
        statistics: Buffers = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(settings)
        self.x, self.direction, self.name, self.staleness = x.astype(float), direction, direction["name"], staleness
        self.optimizer, self.lr, self.sizes = Optimizer(optimizer, len(x)), optimizer["lr"], sizes
        self.sign = -1.0 if direction["kind"] == "gradient" else 1.0
        self.history, self.since = [self.x], math.inf  # since when a round has enough
        self.local_steps, self.taken_part = dict[Any, int](), dict[Any, int]()
        self.held, self.statistics, self.reported = list[Answer](), statistics, list[tuple[Any, Vector, int, float]]()
        self.rows, self.shares, self.start = dict[Any, Vector](), dict[Any, float](), dict[Any, int]()
        self.before = self.rows  # at the start of the round
        self.sum, self.control, self.change = 0 * self.x, 0 * self.x, 0 * self.x
        self.store: Callable[[Any, Vector], Vector] = lambda client, row: row
        self.fragile = False  # whether the last answer was near a jump of its rule

    def dispatch(self, client: Any, version: int | None = None) -> Task:
        """Send the current version, or hand on an open one."""
        self.close_round(if_due=True)
        version = self.version if version is None else version
        steps = self.local_steps.get(client, self.staleness.get("local_steps"))
        task = self.send(client, version, self.x + self.lr * self.optimizer.ahead, steps)
        if self.direction.get("freshness") != "gradient":
            self.start[client] = version
        return task

    def forget(self, client: Any, version: int | None = None) -> None:
        super().forget(client, version)
        if version is None:
            self.local_steps.pop(client, None)

    def restart(self) -> None:
        """Leases and the time of a round begin anew."""
        self.renew()
        self.since = self.time if math.isfinite(self.since) else math.inf

    # -- answers

    def answered(
        self, client: Any, version: int | None, task: Task | None = None, whose: Sequence[Any] | None = None
    ) -> Task:
        """The task of an answer, which in a synchronous rule is of this round. ``whose``: a leaf's clients."""
        task = self.find(client, version, task)
        if (self.name == "Cohort" or self.direction.get("synchronous")) and task.version != self.version:
            raise Refused("UnknownVersion")
        self.check_part([client] if whose is None else whose)
        return task

    def receive(
        self, client: Any, updates: Sequence[tuple[Vector, Any]], version: int | None = None, *,
        task: Task | None = None, control: Vector | None = None, buffers: Buffers = None, is_sum: bool = False,
        clients: Sequence[Any] = (),
    ) -> Receipt:  # fmt: skip
        """One update with its samples, or those of a leaf's sum, which may name its clients."""
        self.close_round(if_due=True)
        task, p, self.fragile = self.answered(client, version, task, clients if is_sum else None), self.direction, False
        clipped, shares = np.array([self.clipped(u) for u, _ in updates]), [self.share(n) for _, n in updates]
        total, share, count = shares @ clipped, sum(shares), len(updates)
        if is_sum and p.get("overflow") == "close" and p["size"] and self.held and self.count() + count > p["size"]:
            self.close_round()
        u, delay = total / (share or 1.0) if is_sum else clipped[0], self.version - task.version
        norm = float(np.linalg.norm(total if is_sum else updates[0][0]))
        gain = min(1.0, (self.settings.get("clip_norm") or math.inf) / (norm or 1.0))  # what comes along moves as far
        answer = Answer(client, u, task.version, delay, share, count, None if control is None else gain * control)
        # without samples it only takes a place in a round
        weight = self.weigh(answer, task) if share > 0 or self.name in ROUNDS else None
        self.end(task, "AlreadyCounted")
        if weight is None:
            return Receipt(False, self.version, delay, None, norm, 0.0)
        self.taken_part[client] = self.taken_part.get(client, 0) + 1
        self.take_part(clients if is_sum else [client])
        answer.weight = weight
        along = self.add(answer, weight)
        if self.statistics is not None and self.settings.get("buffers") != "keep":
            own, count = self.statistics
            if buffers is not None and answer.share:
                theirs = own + gain * (np.asarray(buffers[0]) - own)
                self.reported.append((client, theirs, buffers[1], answer.share))
            elif self.name == "Robust":  # it has a row for every update
                self.reported.append((client, own, count, answer.share))
        if isinstance(along, str):
            if along == "idle":
                self.advance(False)
            elif math.isinf(self.since) and self.count() >= (p.get("at_least") or math.inf):
                self.since = self.time
            return Receipt(False, self.version, delay, None, norm, weight)
        rate, applied = self.step(along, None if self.name in (*ROUNDS, "Calibrated") else [delay])
        scale = weight * (share / p["normalize"] if self.name == "Mixing" and p.get("normalize") else 1.0)
        return Receipt(applied, self.version, delay, rate * (scale if self.name in IMMEDIATE else 1.0), norm, weight)

    def count(self) -> int:
        return sum(a.count for a in self.held)

    def ordered(self, held: list[Any], client: Callable[[Any], Any]) -> list[Any]:
        """As they came, or by the ids of their clients."""
        by_id = self.settings.get("deterministic")
        return sorted(held, key=lambda one: (isinstance(client(one), str), client(one))) if by_id else held

    def clipped(self, u: Vector) -> Vector:
        return u * min(1.0, (self.settings.get("clip_norm") or math.inf) / (float(np.linalg.norm(u)) or 1.0))

    def share(self, samples: Any) -> float:
        if self.settings["weighting"] == "uniform":
            return 1.0
        number = samples[0] * samples[0] / samples[1] if isinstance(samples, tuple) else samples
        return float(min(number, self.settings.get("max_samples") or math.inf))

    def weigh(self, a: Answer, task: Task) -> float | None:
        p, norm = self.staleness, float(np.linalg.norm(a.update))
        if p["name"] != "Euclidean":
            return WEIGHTS.get(p["name"], lambda *_: 1.0)(p, a.delay, self.taken_part.get(a.client, 0))
        if norm == 0:
            return None
        gamma = float(np.linalg.norm(self.x - self.history[a.version])) / norm
        more = (p["gamma_bar"] - gamma) * p["kappa"]
        self.fragile = abs(more - round(more)) < 1e-4 and gamma > 0
        steps = max(1, (task.local_steps or 0) + math.floor(more))
        self.local_steps[a.client] = min(steps, p.get("max_local_steps") or steps)
        return None if gamma > (p.get("gamma_max") or math.inf) else p["lam"] / (gamma + p["eps"])

    # -- directions: the vector u, in the sign of the updates, or "wait", or "idle": a version without a step

    def add(self, a: Answer, s: float) -> Vector | str:
        p, name = self.direction, self.name
        if name == "Single":
            return s * a.update
        if name == "Mixing":
            return s * (a.share / (p.get("normalize") or a.share)) * (self.history[a.version] + a.update - self.x)
        if name == "Aligned":
            ends = np.cumsum(self.sizes)[:-1]
            parts = zip(np.split(a.update, ends), np.split(self.sign * self.optimizer.m, ends), strict=True)
            return s * p["rho"] * np.concatenate([self.aligned(p, d, m) for d, m in parts])
        if name == "Trail":
            self.sum, self.held = self.sum + s * a.update, [*self.held, a]
            if len(self.held) < p["size"]:
                return "wait"
            u, self.sum, self.held = self.sum / p["size"], 0.25 * s * a.update, []
            return u
        if name in ROUNDS:
            return self.buffered(a)
        if name == "Calibrated":
            return self.calibrated(p, a)
        warm = p["warmup"] == "partial" or len(self.shares) == p["num_clients"]
        self.shares[a.client] = a.share
        if name == "Differences":
            self.sum = self.sum + a.update
        else:
            self.rows[a.client] = self.store(a.client, s * a.update)
        if p.get("freshness") == "gradient":
            self.start[a.client] = a.version
        if p["warmup"] == "full" and len(self.shares) < p["num_clients"]:
            return "wait"
        if name == "Differences":
            return self.sum / len(self.shares)
        fresh = [i for i in self.rows if not warm or self.version - self.start[i] <= p.get("max_delay", math.inf)]
        total = np.sum([self.shares[i] * self.rows[i] for i in fresh], axis=0)
        return total / sum(self.shares[i] for i in fresh) if fresh else "idle"  # type: ignore[no-any-return]

    def aligned(self, p: Part, d: Vector, m: Vector) -> Vector:
        length, of_m = float(np.linalg.norm(d)), float(np.linalg.norm(m))
        if min(length, of_m) < p["eps"]:
            return d
        c, conf = float(d @ m) / (length * of_m), length / (length + p["kappa"] * of_m + p["eps"])
        self.fragile |= min(abs(c), abs(c - p["c_ok"])) < 1e-5
        if c >= p["c_ok"]:
            return d
        if c < 0:
            return d - min(-p["k_s"] * c * conf, p["beta_max"]) * c * length * m / of_m
        turn = min(p["k_d"] * (1 - c) * conf, 1.0)
        u = (1 - turn) * d / length + turn * m / of_m
        return length * u / np.linalg.norm(u)  # type: ignore[no-any-return]

    def buffered(self, a: Answer) -> Vector | str:
        if self.name == "CosineBuffer":
            moved = self.x - self.history[a.version]
            lengths = float(np.linalg.norm(moved) * np.linalg.norm(a.update)) or 1.0
            a.share *= max(float(moved @ a.update) / lengths, 0.1) if a.delay else 1.0
            self.change = self.change + (0.0 if a.control is None else a.share * a.control)
        self.held = [*self.held, a]
        return "wait" if self.count() < (self.direction["size"] or math.inf) else self.mean()

    def mean(self) -> Vector | str:
        """What the buffer becomes."""
        held = self.ordered(self.held, lambda a: a.client)
        if self.name == "Robust":
            return robust(self.direction, np.array([a.weight * a.update for a in held]))
        by, shares = self.direction.get("normalize", "buffer"), sum(a.share for a in held)
        weights = sum(a.share * a.weight for a in held)
        self.control, self.change = self.control + self.change / (shares or 1.0), 0.0 * self.change
        total = np.sum([a.share * a.weight * a.update for a in held], axis=0)
        idle = (weights if by == "weights" else shares) == 0
        return "idle" if idle else total / {"buffer": shares, "weights": weights}.get(by, by)

    def calibrated(self, p: Part, a: Answer) -> Vector | str:
        old = (self.before if p["repeat"] == "start" else self.rows).get(a.client, 0.0)
        self.sum = self.sum + a.share * (a.weight * a.update - old)
        self.rows = {**self.rows, a.client: self.store(a.client, a.weight * a.update)}
        self.held = [*self.held, a]
        if len(self.held) < p["size"]:
            return "wait"
        shares = [*{a.client: a.share for a in self.held}.values()]
        divisor = sum(shares if p["repeat"] == "start" else [a.share for a in self.held])
        u = sum(self.before.values(), 0 * self.x) / p["num_clients"] + self.sum / divisor
        self.before, self.sum = self.rows, 0 * self.x
        return u

    # -- steps

    def step(self, u: Vector, delays: list[int] | None = None) -> tuple[float, bool]:
        rate = rate_of(self.staleness, self.lr, delays or [self.version - a.version for a in self.held])
        self.x = self.optimizer.step(self.x, self.sign * u, rate)
        self.advance(rate != 0 or self.lr == 0)
        return rate, rate != 0 or self.lr == 0

    def advance(self, applied: bool) -> None:
        """The next version. Running statistics follow a step; those that came with none are dropped."""
        if applied and self.reported:
            _, values, counters, shares = zip(*self.ordered(self.reported, lambda one: one[0]), strict=True)
            if self.name == "Robust" and self.statistics is not None:
                u = np.array([a.weight * a.update for a in self.ordered(self.held, lambda a: a.client)])
                theirs = robust_statistics(self.direction, u, np.array(values), self.statistics[0])
                self.statistics = theirs, sorted(counters)[(len(counters) - 1) // 2]
            else:
                last = [0.0] * (len(shares) - 1) + [1.0]
                weights = {"weighted": shares, "latest": last}.get(self.settings["buffers"])
                self.statistics = np.average(values, axis=0, weights=weights), max(counters)
        self.reported, self.version, self.since = [], self.version + 1, math.inf
        self.held = self.held if self.name == "Trail" else []
        self.history.append(self.x)

    def close_round(self, *, if_due: bool = False) -> float | None:
        """The learning rate of the step; None if there was none."""
        is_due = self.time - self.since >= (self.direction.get("grace") or 0.0)
        if self.name not in ROUNDS or self.name == "CosineBuffer" or not self.held or (if_due and not is_due):
            return None
        u = self.mean()
        return self.advance(False) if isinstance(u, str) else self.step(u)[0]
