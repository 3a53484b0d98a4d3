"""The state of a running server: tasks and versions, the direction's and the policy's state, the moments."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg.errors import CheckpointError, ConfigError, UpdateTooLarge
from fastagg.layout import ModelState, Parsed
from fastagg.parts.directions import Material
from fastagg.parts.moments import OptimizerState
from fastagg.parts.optimizers import Optimizer
from fastagg.parts.staleness import Staleness
from fastagg.serving import rounds
from fastagg.serving.dispatch import Dispatch, Receipt
from fastagg.serving.runner import on_host, runner_for
from fastagg.serving.statistics import Statistics
from fastagg.storage import memory

if TYPE_CHECKING:
    from fastagg.serving.server import Server


class Core:
    """The state of one server.

    ``ledger``, the direction's book and the model belong to the native road, which changes them in one call. That call
    also replaces the attributes here that an arrival changes. It gets them as (object, attribute, value).

    Args:
        server: the server whose settings apply.
        flat: the model, fp32 [d]. The core owns it from now on.
        statistics: BatchNorm's running statistics.
    """

    def __init__(self, server: Server, flat: Tensor, statistics: Statistics) -> None:
        size, device = flat.numel(), server.device
        direction, staleness, optimizer, layout = server.direction, server.staleness, server.optimizer, server.layout
        self.settings = server
        self.norms: Any = ops if server._norms is None else server._norms
        self.statistics = statistics
        # only if the server is deterministic: updates that wait for the rest of the round
        self.round: tuple[rounds.Entry, ...] = ()
        self.policy = staleness.start(size, server.seed)
        self.keeps_model = direction.needs_base or direction.measures or staleness.measures
        keeps = self.keeps_model or self.policy.keep() is not None
        self.ledger = native.serving.Ledger(
            clients=-1 if server.num_clients is None else server.num_clients, keeps=keeps
        )
        self.ledger.limit(
            lease=math.inf if server.lease is None else server.lease, max_delay=_or_most(server.max_delay),
            open_per_client=_or_most(server.max_open_per_client), clients=_or_most(server.max_clients),
        )  # fmt: skip
        self.settles = server.validate == "deferred" and bool(self.policy.rules())
        host = on_host(device)

        def vector() -> Tensor:
            return memory.empty(size, device)

        material = Material(
            size, device, server.seed, server.origin, layout.buffer_size, vector,
            lambda: memory.spare(size, device),
        )  # fmt: skip
        self.state = direction.start(material)
        self.always = (
            not host or direction.measures or staleness.measures or server.deterministic or self.policy.looks
            or self.state.asks or server._norms is not None
        )  # fmt: skip
        runner, self.there = runner_for(device)
        hyper = optimizer.hyper()
        self._first_moments = OptimizerState(optimizer, size, device, server.seed)
        self.road = native.serving.Road(
            book=self.state.book, ledger=self.ledger, runner=runner,
            stepper=native.serving.Stepper(optimizer.kernel or "sgd", lr=optimizer.lr, **hyper),
            python=(self._hooks(None if host else vector), native.serving.Outside(
                records=(Dispatch, Receipt), layout=layout, usual_steps=self.policy.local_steps or 0,
                keeps_model=self.keeps_model, weighs_by_sample=server.weighting == "samples",
                form=None if self.always else native.serving.Form(
                    parts=[(name, shape, getattr(native.serving.Role, role)) for name, shape, role in layout.parts()],
                    named=layout.form in ("module", "state_dict"), limit=layout.bounds.limit,
                ),
            )),
        )  # fmt: skip
        self.road.start(flat, size=size, origin=server.origin)
        self.road.clip(server.clip_norm or 0.0)
        self.road.begin_life(0, new_life())
        self.measure_bounds()

    def _hooks(self, vector: Callable[[], Tensor] | None) -> Any:
        """Return the functions that the road calls (csrc/serving/road.h)."""
        # A weak reference: Python's collector does not see references held by native code, so the server would never be
        # freed.
        me = weakref.ref(self)
        state, policy, staleness, optimizer = self.state, self.policy, self.settings.staleness, self.settings.optimizer
        hooks = native.serving.Hooks()
        hooks.vector = vector
        hooks.model = lambda: _alive(me)._model()
        hooks.keep = None if policy.keep() is None else policy.keep
        hooks.control = (lambda: state.control) if hasattr(state, "control") else None
        hooks.moments = lambda copies: _alive(me)._moments(copies)
        hooks.weigh = staleness.weight if _overrides(staleness, Staleness, "weight") else None
        hooks.rate = staleness.rate if _overrides(staleness, Staleness, "rate") else None
        own_step = _overrides(optimizer, Optimizer, "step")
        hooks.step = (lambda *given: _alive(me)._own_step(*given)) if own_step else None
        if self.settings.layout.has_buffers:
            hooks.statistics = lambda reported, kind: _alive(me)._with_reported(reported, kind)
        hooks.measure = lambda x, moments: _alive(me)._bounds(x, moments)
        return hooks

    def measure_bounds(self) -> None:
        """Compute new bounds of elements from the current model and moments."""
        self.road.bound_from(*self._bounds(self.road.flat, self.moments))

    def _bounds(self, x: Tensor, moments: OptimizerState) -> list[float]:
        """Return bounds of the elements of a version, of first and of second moments. On a slice they are the whole
        model's."""
        found = [_largest(x, self.norms), *moments.bounds(self.norms)]
        return found if self.norms is ops else [self.norms.largest(bound) for bound in found]

    def agreed(self, more: dict[str, Any]) -> dict[str, Any]:
        """Return ``more`` with the function that the road calls last before anything changes."""
        return more if self.norms is ops else {**more, "agree": self.norms.agree}

    @property
    def moments(self) -> OptimizerState:
        """The optimizer's state."""
        return self.road.moments

    def _moments(self, copies: bool) -> tuple[OptimizerState, Any]:
        held = self.moments.copy() if copies else self._first_moments
        return held, held.struct()

    def _own_step(self, direction: Tensor, lr: float, round: int) -> tuple[Tensor, list[tuple[Any, str, Any]]]:
        """Do a step with a user's own optimizer."""
        held, x = self.moments, self.road.flat
        flat, state = held.optimizer.step(x, direction, dict(held.tensors), lr, round)
        good = isinstance(flat, Tensor) and flat.dtype is torch.float32 and flat.shape == x.shape
        if not good or flat.device != x.device:
            raise ConfigError(f"step: expected a float32 vector of {x.numel()} elements, got {flat!r:.200}")
        if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
            raise ConfigError(f"step: expected a dict of tensors as state, got {state!r:.200}")
        if not ops.inspect(flat).finite:
            raise UpdateTooLarge(f"step: {type(held.optimizer).__name__} made the model NaN or infinite")
        # Copied to the server's own memory, because the returned vector may be the one it was given.
        return memory.empty(x.numel(), x.device).copy_(flat), [(held, "tensors", state)]

    def _model(self) -> ModelState:
        """Return the current model for a task."""
        return ModelState(self.road.flat, self.statistics.values, self.statistics.counters)

    def room(self) -> int:
        """Return how many updates a buffer takes until its next step."""
        return int(self.state.book.room)

    def statistics_of(self, parses: Sequence[Parsed], verdict: Tensor | None = None) -> Callable[..., Any] | None:
        """Return the function that computes the new running statistics. The native call uses it before it commits."""
        if not self.statistics.count and all(p.buffers is None and p.counters is None for p in parses):
            return None

        def ask(count: int, kind: str) -> list[tuple[Any, str, Any]]:
            found = self.statistics
            for parsed in parses[:count]:
                found = found.arrive(parsed, verdict)
            return [(self, "statistics", found.after(kind))]

        return ask

    def _with_reported(self, reported: Any, kind: str) -> list[tuple[Any, str, Any]] | None:
        """Return the move to the statistics after an update that native code has read."""
        held = self.statistics
        found = held.add(reported).after(kind)
        return None if found is held else [(self, "statistics", found)]

    def close_round(self) -> tuple[Any, ...] | None:
        """Step with the updates that have arrived."""
        entries = rounds.in_order(self.round)
        asked = self.statistics_of([entry.parsed for entry in entries])
        ask = None if asked is None else (lambda kind: asked(len(entries), kind))
        more = self.agreed({"moves": [(self, "round", ())], "statistics": ask})
        return self.road.close_round([entry.native() for entry in entries], True, None, None, more)

    def memory(self) -> dict[str, int]:
        """Return the bytes held by each part."""
        held = self.state.memory()
        held["direction"] += rounds.nbytes(self.round)
        kept = {payload.data_ptr(): payload.nbytes for payload in self.ledger.payloads() if payload is not None}
        return {
            "model": self.road.flat.numel() * 4,
            "moments": sum(moment.nbytes for moment in self.moments.tensors.values()),
            **held,
            "versions": sum(kept.values()) + self.policy.nbytes(),
            "clients": self.ledger.nbytes(),
            "buffers": self.statistics.nbytes(),
        }

    def finite(self) -> bool:
        """Return whether all numbers in the state are finite."""
        held = self.state.finite() and self.moments.finite() and self.statistics.finite()
        kept = [payload for payload in self.ledger.payloads() if payload is not None]
        policy = [value for value in self.policy.state_dict().values() if isinstance(value, Tensor)]
        held = held and all(bool(torch.isfinite(tensor).all()) for tensor in policy)
        return held and all(ops.inspect(vector).finite for vector in (self.road.flat, *kept))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data and tensors. Some tensors are shared."""
        for client in list(getattr(self.policy, "pending", ())):
            self.policy.settle(client, self.ledger)
        return {
            "version": self.ledger.version, "steps": self.ledger.steps, "tasks": as_tensors(self.ledger.state()),
            "staleness": self.policy.state_dict(), "flat": self.road.flat, "moments": dict(self.moments.tensors),
            "buffers": self.statistics.state_dict(), "direction": as_tensors(self.state.state_dict()),
            "round": [entry.state_dict() for entry in self.round], "lives": self.road.lives,
        }  # fmt: skip

    @classmethod
    def loaded(cls, server: Server, state: dict[str, Any], like: Statistics) -> Core:
        """Return a core with the state from :meth:`state_dict`. Tensors are copied.

        Raises:
            ValueError and others: the state is damaged.
        """

        def owned(vector: Tensor) -> Tensor:
            if vector.shape != (server.layout.size,):
                raise ValueError(f"expected a vector of {server.layout.size} elements, got {list(vector.shape)}")
            return memory.empty(server.layout.size, server.device).copy_(vector)

        core = cls(server, owned(state["flat"]), like.loaded(state["buffers"]))
        core.moments.load(state["moments"])
        core._first_moments = core.moments
        core.road.start(core.road.flat, size=server.layout.size, origin=server.origin)
        core.state.load_state_dict(state["direction"])
        if (held_sum := state["direction"].get("acc")) is not None and hasattr(core.state.book, "bound_sum"):
            core.state.book.bound_sum(core.norms.inspect(held_sum).norm)
        core.policy.load_state_dict(state["staleness"])
        tasks = dict(state["tasks"])
        if (tasks["version"], tasks["steps"]) != (state["version"], state["steps"]):
            raise CheckpointError("the checkpoint is damaged: it has two versions")
        own = owned if core.keeps_model else torch.Tensor.clone
        held = {int(version): own(kept) for version, kept in tasks["versions"].items() if kept is not None}
        core.ledger.load({**tasks, "versions": held})
        for first, number in state.get("lives", ()):
            core.road.begin_life(int(first), int(number))
        core.road.begin_life(int(state["version"]) + 1, new_life())  # versions made after that state are lost
        core.round = tuple(rounds.Entry.loaded(entry, server, int(state["version"])) for entry in state["round"])
        core.measure_bounds()
        return core


def new_life() -> int:
    """Return a number that no other life of any server has."""
    return int.from_bytes(os.urandom(8), "big") >> 1  # 63 bits, so that it fits in a signed number


def _or_most(limit: int | None) -> int:
    return 2**63 - 1 if limit is None else limit


def as_tensors(value: Any) -> Any:
    """Return nested plain data with tensors instead of NumPy's arrays. A checkpoint holds no other library's
    objects."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value)) if value.size else torch.empty(0, dtype=torch.int64)
    if isinstance(value, dict):
        return {key: as_tensors(item) for key, item in value.items()}
    return value


def _largest(vector: Tensor, norms: Any) -> float:
    """Return a bound of a vector's elements: its norm, which is fast to compute, or the largest element."""
    norm: float = norms.inspect(vector).norm
    return norm if norm < 1e37 else float(vector.abs().max())


def _alive(core: weakref.ref[Core]) -> Core:
    found = core()
    assert found is not None
    return found


def _overrides(part: Any, base: type, method: str) -> bool:
    return getattr(type(part), method) is not getattr(base, method)
