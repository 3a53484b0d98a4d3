"""The loop that every server rule shares, in NumPy float64.

An arrival passes through four stages, each a small object of its own:

    update -> clip -> policy.weight (s(tau)) -> direction (D or nothing yet) -> optimizer -> x, t + 1
                                                policy.learning_rate (eta_t) ---^

What the stages compute is written in the other files beside each paper's equations; this file only keeps the
books: versions sent, delays, model buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from .optimizers import Optimizer
from .policies import Constant, Policy

Vector = npt.NDArray[np.float64]
Buffers = Mapping[str, npt.ArrayLike]


class Receipt(TypedDict):
    """What `receive` answers.

    applied:      the arrival made the model take a step with a step size other than zero
    version:      t after the call
    delay:        tau = t - s of this arrival, t before the call
    step_size:    eta_t of the step (without Adam's bias correction); for rules that step on one update alone
                  it includes the update's weight s(tau), so FedAsync reports alpha*s(tau) and AsyncFedED
                  eta_i; 0.0 for a dropped update, None when there was no step at all
    update_norm:  2-norm of the update as it came, before clipping
    weight:       s(tau), 0.0 when the policy discarded the update
    """

    applied: bool
    version: int
    delay: int
    step_size: float | None
    update_norm: float
    weight: float


@dataclass
class Arrival:
    """One update as the direction sees it."""

    client: int
    update: Vector  # after clipping
    version: int  # s
    delay: int  # tau = t - s
    samples: float  # n_i; 1.0 when weighting is uniform
    weight: float = 1.0  # s(tau)
    buffers: dict[str, npt.NDArray[Any]] | None = None
    control_delta: Vector | None = None  # FedAC: c_new - c_i
    count: int = 1  # a leaf's: the weighted mean of so many updates


class Direction:
    """Base of the aggregation rules: turns arrivals into u, in the sign of the updates."""

    immediate = False  # True when u is made of one arrival alone

    def add(self, server: Composed, arrival: Arrival) -> Vector | Literal["wait", "empty"]:
        """The vector u of this step; "wait": it needs more arrivals; "empty": this iteration has no step."""
        raise NotImplementedError

    def close_before(self, count: int) -> Vector | None:
        """The vector of a step that comes before a sum of so many updates is added, if there is one."""
        return None

    def share(self, arrival: Arrival) -> float:
        """What the step of one arrival alone is multiplied by, beside s(tau)."""
        return 1.0

    def dispatched(self, client: int, version: int) -> None:
        """A client was sent a version."""


class Composed:
    """Any direction with any optimizer and any staleness policy.

    x0             flat model, copied to float64
    kind           "delta": D = u is added; "gradient": D = -u
    clip_norm      every update is scaled to a 2-norm of at most this, before anything else sees it
    weighting      "uniform", or "samples": means over updates become sum(n_i*u_i)/sum(n_i)
    buffers        model buffers that are not parameters, by name
    buffer_rule    "mean": floats take the plain mean over the arrivals since the last step, integers the
                   maximum; "latest": floats take the last arrival's; "keep"
    An iteration without a step (ACED's empty active set, a dropped update) counts as a version, as in the papers' loops
    (002 Alg. a.1 line 9 and Alg. a.4 line 12: w^{t+1} = w^t).
    """

    def __init__(
        self,
        x0: npt.ArrayLike,
        direction: Direction,
        optimizer: Optimizer,
        policy: Policy | None = None,
        *,
        kind: Literal["delta", "gradient"] = "delta",
        clip_norm: float | None = None,
        weighting: Literal["uniform", "samples"] = "uniform",
        buffers: Buffers | None = None,
        buffer_rule: Literal["mean", "latest", "keep"] = "mean",
    ) -> None:
        self.x: Vector = np.array(x0, dtype=np.float64)
        self.t = 0
        self.direction = direction
        self.optimizer = optimizer
        self.policy: Policy = Constant() if policy is None else policy
        self.kind = kind
        self.clip_norm = clip_norm
        self.weighting = weighting
        self.buffers: dict[str, npt.NDArray[Any]] = {k: np.array(v) for k, v in (buffers or {}).items()}
        self.buffer_rule = buffer_rule
        self.history: list[Vector] = [self.x.copy()]  # history[v] is the model of version v (003: GMIS)
        self.outstanding: set[tuple[int, int]] = set()
        self.last_sent: dict[int, int] = {}
        self.flush: list[Arrival] = []  # arrivals since the last step

    def dispatch(self, client: int) -> int:
        """Send the current model to `client`; the version sent. Twice at one version is one dispatch."""
        self.outstanding.add((client, self.t))
        self.last_sent[client] = self.t
        self.policy.dispatched(client, self.t)
        self.direction.dispatched(client, self.t)
        return self.t

    def local_steps(self, client: int) -> int | None:
        """Local steps the client is told to make (AsyncFedED, 003 Eq. 8); None where no rule says so."""
        return self.policy.local_steps(client)

    def receive(
        self,
        client: int,
        update: npt.ArrayLike,
        version: int | None = None,
        num_samples: float | None = None,
        *,
        buffers: Buffers | None = None,
        control_delta: npt.ArrayLike | None = None,
        count: int = 1,
    ) -> Receipt:
        """One update of `client`, trained on `version` (None: the version last sent to it).

        With a count: the mean of so many updates, which counts for num_samples under both weightings.
        """
        s = self._answered(client, version)
        closed = self.direction.close_before(count)
        if closed is not None:
            self._step(closed)
        u = np.array(update, dtype=np.float64)
        if u.shape != self.x.shape or not np.all(np.isfinite(u)):
            raise ValueError("the oracle takes finite vectors of the model's size only")
        norm = float(np.linalg.norm(u))
        if self.clip_norm is not None and norm > self.clip_norm:
            u = u * (self.clip_norm / norm)
        if self.weighting == "samples" and num_samples is None:
            raise ValueError("weighting by samples needs num_samples")
        arrival = Arrival(
            client=client,
            update=u,
            version=s,
            delay=self.t - s,
            samples=float(num_samples)
            if (self.weighting == "samples" or count > 1) and num_samples is not None
            else 1.0,
            count=count,
            buffers=None if buffers is None else {k: np.array(v) for k, v in buffers.items()},
            control_delta=None if control_delta is None else np.array(control_delta, dtype=np.float64),
        )
        self.outstanding.discard((client, s))

        weight = self.policy.weight(self, arrival)
        if weight is None:
            return self._receipt(False, arrival.delay, None, norm, 0.0)
        arrival.weight = weight
        self.flush.append(arrival)
        u_or_word = self.direction.add(self, arrival)
        if isinstance(u_or_word, str):
            if u_or_word == "empty":
                self.flush = []
                self._next_version()
            return self._receipt(False, arrival.delay, None, norm, weight)

        lr, dropped = self._step(u_or_word)
        step_size = lr * weight * self.direction.share(arrival) if self.direction.immediate else lr
        return self._receipt(not dropped, arrival.delay, step_size, norm, weight)

    def _step(self, u: Vector) -> tuple[float, bool]:
        d = -u if self.kind == "gradient" else u
        tau_max = max(a.delay for a in self.flush)
        lr = self.policy.learning_rate(self.optimizer.lr, tau_max)
        dropped = lr == 0.0 and self.optimizer.lr != 0.0
        if not dropped:
            self._take_buffers()
        self.flush = []
        self.x = self.optimizer.step(self.x, d, lr)
        self._next_version()
        return lr, dropped

    def _answered(self, client: int, version: int | None) -> int:
        if client not in self.last_sent:
            raise KeyError(f"client {client} was never sent a model")
        s = self.last_sent[client] if version is None else version
        if (client, s) not in self.outstanding:
            raise KeyError(f"client {client} owes no update of version {s}")
        return s

    def _next_version(self) -> None:
        self.t += 1
        self.history.append(self.x.copy())

    def _take_buffers(self) -> None:
        received = [a.buffers for a in self.flush if a.buffers is not None]
        if self.buffer_rule == "keep" or not received:
            return
        for name, old in self.buffers.items():
            values = [b[name] for b in received]
            if np.issubdtype(old.dtype, np.integer):
                self.buffers[name] = np.max(values, axis=0)
            elif self.buffer_rule == "latest":
                self.buffers[name] = values[-1].astype(np.float64)
            else:
                self.buffers[name] = np.mean(np.array(values, dtype=np.float64), axis=0)

    def _receipt(self, applied: bool, delay: int, step: float | None, norm: float, weight: float) -> Receipt:
        return Receipt(applied=applied, version=self.t, delay=delay, step_size=step, update_norm=norm, weight=weight)


def weighted_mean(rows: list[Vector], samples: list[float]) -> Vector:
    """sum(n_i*u_i)/sum(n_i): the plain mean when every n_i is 1."""
    total = np.zeros_like(rows[0])
    for row, n in zip(rows, samples, strict=True):
        total = total + n * row
    return total / sum(samples)
