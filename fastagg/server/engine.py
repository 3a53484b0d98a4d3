"""Builds a server's compiled engine (csrc/engine) from the server's parts and settings, or from a saved state. Also
returns the state, for checkpoints. Server, watching.py and fastagg/durable call this module."""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastagg import ops, registry
from fastagg._build import native
from fastagg._types import Native, Plain, State, Tree
from fastagg.errors import CheckpointError
from fastagg.model import Layout, ModelState, ParsedUpdate
from fastagg.ops.place import CPU, place
from fastagg.rules.directions import Direction, Material
from fastagg.rules.optimizers import Optimizer
from fastagg.rules.privacy import NoiseKey
from fastagg.rules.staleness import Staleness
from fastagg.server import checkpoint
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.extension import Extension, ParticipationCounts
from fastagg.server.settings import RULES, ServerSettings
from fastagg.server.statistics import Statistics, divided, joined
from fastagg.server.together import answers_per_step
from fastagg.storage import memory
from fastagg.storage.pieces import Pieces, stored_pieces

MOST = 2**63 - 1


class ServerParts(NamedTuple):
    """A server's rules, model layout, device and settings."""

    direction: Direction
    optimizer: Optimizer
    staleness: Staleness
    settings: ServerSettings
    layout: Layout
    device: torch.device
    key: NoiseKey  # the key with which a private rule draws noise

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's vector: fp32, or bf16 by the setting ``model_dtype``."""
        return torch.float32 if self.settings["model_dtype"] is None else torch.bfloat16

    @property
    def on_host(self) -> bool:
        """Whether kernels run on the CPU, not on a GPU."""
        return place(self.device) is CPU

    @property
    def num_clients(self) -> int | None:
        """n, the number of clients, from the direction or the setting ``num_clients``. None: any number."""
        return self.direction.clients if self.direction.clients is not None else self.settings["num_clients"]


@dataclass
class Runtime:
    """The engine of a running server, and the engine's Python part. All objects that belong to a server share this
    object, so :meth:`adopt` replaces the state for all of them."""

    engine: Native
    extension: Extension
    memory: Native  # allocates the engine's vectors
    first: weakref.ref[torch.UntypedStorage]  # the memory of the first version, which torch allocated

    def adopt(self, fresh: Runtime) -> None:
        """Continue with the state of ``fresh``, which no other object may use. The caller holds the server's lock."""
        self.engine.adopt(fresh.engine)  # threads that wait for the engine's lock continue with the new state
        self.extension, self.memory, self.first = fresh.extension, fresh.memory, fresh.first

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer with the current learning rate. The engine owns this rate."""
        held, rate = self.extension.optimizer, self.engine.lr
        return held if held.lr == rate else replace(held, lr=rate)

    def follow_rate(self) -> None:
        """Set the optimizer's learning rate to the engine's, after the log was executed. A user's own optimizer reads
        the rate from its object."""
        self.extension.optimizer = self.optimizer


def start(parts: ServerParts, flat: Tensor, statistics: Statistics) -> Runtime:
    """Return the runtime of a new server. ``flat``: the model, [d]. From now on the engine owns its memory."""
    settings, layout, direction, optimizer = parts.settings, parts.layout, parts.direction, parts.optimizer
    seed = settings["seed"]
    if parts.on_host:
        where = native.engine.on_cpu()
    else:
        where = native.engine.on_device(
            place(parts.device).device, lambda nbytes: memory.empty_bytes(nbytes, parts.device)
        )
    state = direction.start(
        Material(layout.size, parts.device, seed, layout.buffer_size, where.memory, parts.key, layout.ends())
    )
    extension = Extension(
        direction, optimizer, parts.staleness, layout, state, statistics, device=parts.device, on_host=parts.on_host,
        clip_norm=settings["clip_norm"],
    )  # fmt: skip
    clients = parts.num_clients
    engine = native.engine.Engine(
        settings=native.engine.Settings(
            size=layout.size, clients=-1 if clients is None else clients,
            clip_norm=settings["clip_norm"] or 0.0, max_samples=settings["max_samples"] or 1e30,
            local_steps=parts.staleness._first_steps or 0, weighs_by_samples=settings["weighting"] != "uniform",
            largest_model=_largest(layout, flat),
            keeps_versions=extension.keeps_model, participation=_participation(direction, settings),
            closes_early=direction.buffered and not state.asks,
            folds=_folds(parts, extension), staleness=parts.staleness._native(),
        ),
        direction=native.engine.Ordered(state.native) if settings["deterministic"] else state.native,
        optimizer=optimizer.native(), seed=seed, place=where, extension=extension, asks=extension.asks(), flat=flat,
        python={
            "layout": layout, "task": Dispatch, "receipt": Receipt, "statistics": statistics,
            "control": extension.sends or extension.control is not None,
            "reader": None if extension.always else _reader(layout),
            "device": -1 if parts.on_host else place(parts.device).device,
        },
    )  # fmt: skip
    limit(engine, settings)
    engine.most_waiting(settings["max_waiting"] or MOST)
    engine.by_time = getattr(direction, "at_least", None) is not None
    engine.begin_incarnation(0, new_incarnation())
    engine.measure()
    return Runtime(engine, extension, where.memory, weakref.ref(flat.untyped_storage()))


def _participation(direction: Direction, settings: ServerSettings) -> Native:
    """Return the limits on how often a client may take part, from ``answers_per_step`` and the rule's ``privacy``."""
    privacy = getattr(direction, "privacy", None)
    private = {} if privacy is None else {
        "separation": privacy.min_separation, "total": privacy.max_participations or MOST,
    }  # fmt: skip
    return native.engine.Participation(per_step=answers_per_step(direction, settings) or 0, **private)


def limit(engine: Native, settings: ServerSettings | None) -> None:
    """Set the limits of tasks: ``lease``, ``max_delay``, ``max_open_per_client`` and ``max_clients``. All leases, and
    the grace period of a round, begin again. ``settings``: the server's settings. None: there are no limits."""
    limits: Plain = dict(settings or {})
    lease, names = limits.get("lease"), ("max_delay", "max_open_per_client", "max_clients")
    delay, per_client, clients = (MOST if limits.get(name) is None else limits[name] for name in names)
    engine.limit(
        lease=math.inf if lease is None else lease, max_delay=delay, open_per_client=per_client, clients=clients
    )


def new_incarnation() -> int:
    """Return a random number of 63 bits, which identifies an incarnation."""
    return int.from_bytes(os.urandom(8), "big") >> 1  # 63 bits, so that the number fits into a signed 64-bit integer


# -- states ------------------------------------------------------------------------------------------------------------


def config(parts: ServerParts, running: Runtime) -> Plain:
    """Return a server's direction, optimizer, policy and settings as plain data."""
    rules = {"direction": parts.direction, "optimizer": running.optimizer, "staleness": parts.staleness}
    settings = {key: value for key, value in parts.settings.items() if RULES[key].kept}
    described = {key: registry.describe(part) for key, part in rules.items()}
    return dict(checkpoint.plain({**described, **settings, "num_clients": parts.num_clients}))


def whole(parts: ServerParts, running: Runtime, *, rows: bool = True) -> State:
    """Return the contents of a checkpoint: the settings, and the state from :func:`state_of`."""
    return {
        "format": checkpoint.FORMAT, "config": config(parts, running), "layout": parts.layout.spec(),
        **state_of(running, rows=rows),
    }  # fmt: skip


def state_of(running: Runtime, *, rows: bool = True) -> State:
    """Return the state as plain data and tensors. Some tensors are shared. The caller holds the server's lock.

    Args:
        rows: whether to include the rows of a client cache. A snapshot copies the rows one by one, and passes False.
    """
    engine, extension = running.engine, running.extension
    tasks = as_tensors(engine.tasks())
    ids, offset = tasks.pop("ids"), tasks.pop("offset")
    taken_part = {} if extension.taken_part is None else {"taken_part": extension.taken_part.times()}
    return {
        **taken_part, "version": engine.version, "steps": engine.steps, "tasks": tasks, "ids": ids, "offset": offset,
        "flat": engine.model, "moments": moments_of(running),
        "buffers": extension.held.state_dict(), "direction": as_tensors(extension.state.state_dict(rows=rows)),
        "round": [_waiting(entry, extension.held) for entry in engine.waiting], "lives": engine.incarnations,
    }  # fmt: skip


def moments_of(running: Runtime) -> dict[str, Tensor]:
    """Return the optimizer's moments by name. For a user's own optimizer, return its state."""
    if running.extension.optimizer.has_own_step:
        return dict(running.extension.own)
    moments: dict[str, Tensor] = running.engine.moments
    if "units" in moments:
        moments["units"] = moments["units"].view(2 if "v" in moments else 1, -1)
    return moments


def checked(parts: ServerParts, running: Runtime, state: State) -> Runtime:
    """Return a new runtime with ``state``, the result of :func:`whole`. ``running`` does not change. CheckpointError:
    the state is damaged, or does not fit the server."""
    names = None if running.optimizer.has_own_step else set(moments_of(running))
    checkpoint.check(state, config(parts, running), parts.layout, names)
    checkpoint.check_claims(state, state["config"], parts.layout)
    theirs = state["config"].get("answers_per_step")
    counted = parts.direction.counts_clients if theirs == "rule" else theirs is not None
    if not counted and answers_per_step(parts.direction, parts.settings) is not None:
        raise CheckpointError(
            "answers_per_step: the server that saved the state had no limit, so it does not say who has answered in "
            "this step; load it into a server with answers_per_step=None"
        )
    return loaded(parts._replace(optimizer=running.optimizer), state, running.extension.held)


def loaded(parts: ServerParts, state: State, like: Statistics) -> Runtime:
    """Return a new runtime with ``state``, the result of :func:`state_of`. Tensors are copied. ``like``: statistics of
    the same model, with the server's setting ``buffers``. CheckpointError: the state is damaged."""
    if state["round"] and not parts.settings["deterministic"]:
        raise CheckpointError("the checkpoint holds updates of a deterministic round; this server has none")
    try:
        return _loaded(parts, state, like)
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error


def _loaded(parts: ServerParts, state: State, like: Statistics) -> Runtime:
    layout, device = parts.layout, parts.device

    def owned(vector: Tensor) -> Tensor:
        if vector.shape != (layout.size,):
            raise ValueError(f"expected a vector of {layout.size} elements, got {list(vector.shape)}")
        return memory.empty(layout.size, device, parts.dtype).copy_(vector)

    running = start(parts, owned(state["flat"]), like.loaded(state["buffers"]))
    engine, extension = running.engine, running.extension
    _load_moments(running, state["moments"], device)
    extension.state.load_state_dict(state["direction"])
    if layout.has_buffers and not extension.held.has_all(state["direction"]):
        raise ValueError("running statistics of other updates than those that wait")
    if extension.taken_part is not None:
        extension.taken_part = ParticipationCounts(state["taken_part"])
    held_sum = state["direction"].get("acc")
    if held_sum is not None and held_sum.is_floating_point() and hasattr(extension.state.native, "bound_sum"):
        extension.state.native.bound_sum(ops.inspect(held_sum).norm)
    tasks = dict(state["tasks"])
    if (tasks["version"], tasks["steps"]) != (state["version"], state["steps"]):
        raise CheckpointError("the checkpoint is damaged: it has two versions")
    held = {int(version): owned(kept) for version, kept in tasks["versions"].items() if kept is not None}
    engine.load_tasks({**tasks, "ids": state["ids"], "offset": state["offset"], "versions": held})
    for first, number in state["lives"]:
        engine.begin_incarnation(int(first), int(number))
    # Versions after the saved one are lost. New versions get their numbers, and so belong to a new incarnation.
    engine.begin_incarnation(int(state["version"]) + 1, new_incarnation())
    engine.load_waiting([_loaded_waiting(entry, parts, extension.held) for entry in state["round"]])
    engine.measure()
    limit(engine, parts.settings)
    if not finite(running):
        raise CheckpointError("the checkpoint holds NaN or infinity")
    return running


def _load_moments(running: Runtime, theirs: dict[str, Tensor], device: torch.device) -> None:
    if running.extension.optimizer.has_own_step:
        running.extension.own = {str(name): tensor.to(device, copy=True) for name, tensor in theirs.items()}
        return
    for name, mine in moments_of(running).items():
        stored = theirs[name]
        if stored.shape != mine.shape or stored.dtype != mine.dtype:
            raise ValueError(
                f"{name}: expected {mine.dtype} {list(mine.shape)}, got {stored.dtype} {list(stored.shape)}"
            )
        mine.copy_(stored)


def finite(running: Runtime) -> bool:
    """Return whether all floating-point numbers in the state are finite."""
    engine, extension = running.engine, running.extension
    moments = [moment for moment in moments_of(running).values() if moment.is_floating_point()]
    held = extension.state.finite() and extension.held.finite()
    held = held and all(bool(torch.isfinite(tensor).all()) for tensor in moments)
    return held and all(ops.inspect(vector).finite for vector in (engine.model, *engine.kept))


def nbytes(running: Runtime) -> dict[str, int]:
    """Return how many bytes each part of the state takes."""
    engine, extension = running.engine, running.extension
    held = extension.state.memory()
    held["direction"] += sum(piece.nbytes for entry in engine.waiting for piece in entry["update"])
    kept = {payload.data_ptr(): payload.nbytes for payload in (*engine.kept, *engine.held_before)}
    if (first := running.first()) is not None and first.data_ptr() != engine.model.data_ptr():
        kept[first.data_ptr()] = engine.model.nbytes
    kept.pop(engine.model.data_ptr(), None)
    own = sum(tensor.nbytes for tensor in extension.own.values())
    return {
        "model": engine.model.nbytes, "moments": engine.moments_nbytes + own, **held,
        "versions": sum(kept.values()), "clients": engine.ledger_nbytes,
        "buffers": extension.held.nbytes(),
    }  # fmt: skip


def as_tensors(value: Tree) -> Tree:
    """Return nested dicts in which tensors replace NumPy's arrays. :func:`.checkpoint.read` refuses NumPy's arrays."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value)) if value.size else memory.empty(0, dtype=torch.int64)
    if isinstance(value, dict):
        return {key: as_tensors(item) for key, item in value.items()}
    return value


def reported(parsed: ParsedUpdate, like: Statistics) -> Native:
    """Return copies of an update's buffers and counters, in the engine's form. None: the update has neither. ``like``:
    the server's statistics."""
    if parsed.buffers is None and parsed.counters is None:
        return None
    values = None if parsed.buffers is None else parsed.buffers.flat(torch.float32)
    counters = [] if parsed.counters is None else joined(parsed.counters, like.counters).tolist()
    return native.engine.reported(values=values, counters=counters)


def _waiting(entry: State, like: Statistics) -> State:
    """Return an update that waits for the end of a deterministic round as plain data and tensors. ``entry``: the update
    in the engine's form, as a dict that this function changes. ``like``: the server's statistics."""
    statistics = entry.pop("reported")
    values = None if statistics is None else statistics.values
    return {
        **entry, "buffers": None if values is None else [values],
        "counters": divided(statistics.counters, like.counters) if statistics and statistics.counters else None,
    }  # fmt: skip


def _loaded_waiting(entry: State, parts: ServerParts, like: Statistics) -> State:
    """Return the update from ``entry``, the result of :func:`_waiting`, in the engine's form. Tensors are copied."""
    update = stored_pieces([piece.clone() for piece in entry["update"]])
    update = (update if parts.on_host else update.plain()).to(parts.device)
    buffers = None if entry["buffers"] is None else Pieces(entry["buffers"])
    if update.size != parts.layout.size or (buffers is not None and buffers.size != parts.layout.buffer_size):
        raise ValueError("an update that waits for its round is not of this model")
    statistics = reported(ParsedUpdate(update, buffers, entry["counters"]), like)
    numbers = {name: float(entry[name]) for name in ("gain", "weight", "share", "norm")}
    return {"client": entry["client"], **numbers, "update": update, "reported": statistics}


# -- parts of the engine -----------------------------------------------------------------------------------------------


def _folds(parts: ServerParts, extension: Extension) -> bool:
    """Return whether trained models can be added to a buffer's sum without computing their differences first."""
    direction, settings = parts.direction, parts.settings
    return (
        parts.on_host and not extension.always and direction.buffered and direction.kind == "delta"
        and settings["clip_norm"] is None and parts.layout.all_fp32 and not settings["deterministic"]
        and not parts.optimizer.has_own_step and getattr(direction, "privacy", None) is None
    )  # fmt: skip


def _largest(layout: Layout, flat: Tensor) -> float:
    """Return the largest magnitude that an element of the model may have: the largest number that the types of all
    parameters can hold. If the model already has a larger element, return 1e39, which limits no element."""
    small = layout.largest < 1e38
    return 1e39 if small and float(flat.abs().max()) > layout.largest else layout.largest


def _reader(layout: Layout) -> Native:
    return native.engine.Reader(
        parts=[(name, shape, getattr(native.engine.Role, role)) for name, shape, role in layout.parts()],
        named=layout.form in ("module", "state_dict"), whole=ModelState, limit=layout.bounds.limit, size=layout.size,
    )  # fmt: skip
