"""The formulas of docs/algorithms.md for :mod:`support.model`: staleness policies, optimizers, robust rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from support.book import Refused, Vector

Part = Mapping[str, Any]

WEIGHTS: dict[str, Callable[[Part, int, int], float | None]] = {  # s(tau), after so many updates of this client
    "Hinge": lambda p, tau, _: 1.0 if tau <= p["b"] else 1 / (p["a"] * (tau - p["b"]) + 1),
    "Polynomial": lambda p, tau, _: (tau + 1.0) ** -p["a"],
    "CosineGate": lambda p, tau, _: (
        math.exp(-p["alpha"] * tau) * (1 + math.cos(math.pi * min(tau / p["cutoff"], 1.0))) / 2),
    "Cutoff": lambda p, tau, _: 1.0 if tau < p["delay"] else None,
    "HalfLife": lambda p, tau, _: 0.5 ** (tau / p["versions"]),
    "Rare": lambda p, _, times: (1 + times) ** -0.5,
}  # fmt: skip
RATES: dict[str, Callable[[Part, float, int], float]] = {  # beyond the threshold
    "scaled": lambda p, lr, tau: min(lr, lr / tau),
    "reciprocal": lambda p, lr, tau: min(lr, 1 / tau),
    "threshold": lambda p, lr, tau: lr * p["threshold"] / tau,
    "lipschitz": lambda p, lr, tau: min(lr, 1 / (4 * p["lipschitz"] * tau)),
    "drop": lambda p, lr, tau: 0.0,
}


def rate_of(p: Part, lr: float, delays: Sequence[int]) -> float:
    longest = max(delays)
    if p["name"] == "HalfLife":
        return lr / 10 if longest > p["most"] else lr
    return lr if p["name"] != "DelayAdaptive" or longest <= p["threshold"] else RATES[p["rule"]](p, lr, longest)


class Optimizer:
    def __init__(self, part: Part, size: int) -> None:
        self.part, self.steps, self.m = part, 0, np.zeros(size)
        self.v = self.vhat = np.full(size, float(part.get("initial", 0.0)))

    @property
    def ahead(self) -> Vector:
        """What a look-ahead adds to the model, over the learning rate."""
        return self.part["momentum"] * self.m if self.part.get("look_ahead") else 0.0 * self.m

    def step(self, x: Vector, d: Vector, lr: float) -> Vector:
        p, self.steps = self.part, self.steps + 1
        if p.get("decoupled_weight_decay"):
            return (1 - lr * p["weight_decay"]) * x + lr * self.towards(p, d)
        return x + lr * self.towards(p, d - p.get("weight_decay", 0.0) * x)

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
            self.v = self.v + d
            if self.steps % p["period"]:
                return d / p["period"]
            self.m, self.v = mu * self.m + self.v / p["period"], 0.0 * d
            return d / p["period"] + mu * self.m
        if name == "Lion":
            before, self.m = self.m, p["beta2"] * self.m + (1 - p["beta2"]) * d
            return np.sign(p["beta1"] * before + (1 - p["beta1"]) * d)
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


def shares_of(p: Part, u: Vector) -> Vector | None:
    """What each row of u counts for under a robust rule. None: the rule combines elements."""
    rule, n = p["rule"], len(u)
    if rule in ("median", "trimmed", "mean_around_median"):
        return None
    if rule in ("krum", "multi_krum"):
        apart = np.array([((u - row) ** 2).sum(axis=1) for row in u])
        scores = [np.sort(np.delete(apart[i], i))[: n - p.get("f", 0) - 2].sum() for i in range(n)]
        best = np.argsort(scores, kind="stable")[: 1 if rule == "krum" else p.get("keep") or n - p.get("f", 0)]
        return np.isin(np.arange(n), best) / len(best)
    shares = np.zeros(n)
    for _ in range(p["iterations"]):
        lengths = np.linalg.norm(u - shares @ u, axis=1)
        if rule == "geometric_median":
            shares = 1 / np.maximum(p["smoothing"], lengths)
            shares = shares / shares.sum()
        else:
            kept = np.minimum(1.0, p["radius"] / np.maximum(lengths, 1e-300)) / n
            shares = shares * (1 - kept.sum()) + kept
    return shares


def of_elements(p: Part, u: Vector) -> Vector:
    """What a robust rule makes of each column of u."""
    rows, n = np.sort(u, axis=0), len(u)
    if p["rule"] == "mean_around_median":
        nearest = np.argsort(np.abs(rows - np.median(u, axis=0)), axis=0, kind="stable")
        return np.take_along_axis(rows, nearest, axis=0)[: n - p.get("f", 0)].mean(axis=0)
    cut = (n - 1) // 2 if p["rule"] == "median" else int(p["trim"] * n)
    return rows[cut : n - cut].mean(axis=0)


def robust(p: Part, u: Vector) -> Vector:
    """What a robust rule makes of the rows of u."""
    f = p.get("f", 0)
    least = {"mean_around_median": 2 * f + 1, "krum": 2 * f + 3, "multi_krum": 2 * f + 3}.get(p["rule"], 1)
    if len(u) < max(least, p.get("keep") or 1):
        raise Refused("ConfigError")
    shares = shares_of(p, u)
    return of_elements(p, u) if shares is None else shares @ u


def robust_statistics(p: Part, u: Vector, v: Vector, own: Vector) -> Vector:
    """Running statistics v that came with the updates u: those far from the others' are moved to where these end."""
    shares = shares_of(p, u)
    if shares is None:
        return of_elements(p, v)
    middle = np.median(v, axis=0)
    far = 10 * np.median(np.abs(v - middle), axis=0)
    return shares @ np.clip(v, middle - far, middle + far) + (1 - shares.sum()) * own
