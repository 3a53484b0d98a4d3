"""The Python part of a step: distances, a user's own rules, and running statistics.

The engine calls these methods with the server's lock held, before it changes the server's state
(csrc/bindings/extension.h). So a method may raise. A method does not change the state itself: it returns the changes,
and the engine makes them in its commit. For most servers the engine calls none of these methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fastagg import ops
from fastagg._build import native
from fastagg._types import Move, Native
from fastagg.errors import ConfigError, NonFiniteUpdate, UpdateTooLarge
from fastagg.model import Layout, ParsedUpdate
from fastagg.ops.place import on_device
from fastagg.ops.update import Distances, distances_from
from fastagg.rules import results
from fastagg.rules.directions import Arrival, Direction, DirectionState
from fastagg.rules.directions.base import OwnState
from fastagg.rules.optimizers import Optimizer
from fastagg.rules.staleness import Facts, Staleness
from fastagg.server.statistics import Statistics, divided, joined
from fastagg.storage import memory, staging
from fastagg.storage.cell import SwapCell
from fastagg.storage.pieces import Pieces

Moves = list[Move]


class ParticipationCounts:
    """Counts how many updates of each client have been used (``Facts``), for rules that need the numbers."""

    def __init__(self, times: Mapping[int | str, int] | None = None) -> None:
        self._slots = {client: slot for slot, client in enumerate(times or {})}
        self._times = np.zeros(max(64, 2 * len(self._slots)), np.int64)
        self._times[: len(self._slots)] = list((times or {}).values())

    def of(self, client: int | str) -> int:
        return int(self._times[self._slots[client]]) if client in self._slots else 0

    def one_more(self, client: int | str) -> Move:
        """Return the change that adds one to the client's number, for the engine's commit."""
        slot = self._slots.setdefault(client, len(self._slots))
        if slot == len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        return self._times, slot, self.of(client) + 1

    def times(self) -> dict[int | str, int]:
        return {client: times for client in self._slots if (times := self.of(client))}


class Extension:
    """The Python part of one server's steps.

    Attributes:
        held: the running statistics of the current version, and those of clients since the last step.
        state: the direction's state.
        always: whether the engine calls :meth:`prepare` for every update. If False, it never calls :meth:`prepare`.
    """

    held = SwapCell[Statistics]()
    own = SwapCell[dict[str, Tensor]]()  # the state of a user's own optimizer

    def __init__(
        self, direction: Direction, optimizer: Optimizer, staleness: Staleness, layout: Layout, state: DirectionState,
        held: Statistics, *, device: torch.device, on_host: bool, clip_norm: float | None,
    ) -> None:  # fmt: skip
        self.direction, self.optimizer, self.staleness, self.layout = direction, optimizer, staleness, layout
        self.state, self.held, self.device, self.on_host = state, held, device, on_host
        self.clip_norm = clip_norm
        self.measures = staleness.measures or direction.measures
        self.needs_base = direction.needs_base or staleness.needs_base
        self.keeps_model = self.needs_base or self.measures
        self.always = self.measures or staleness.looks or state.asks
        # Name -> the number of elements of the vector that clients send under this name besides an update.
        self.takes = {name: size or layout.size for name, size in {**direction.takes, **staleness.takes}.items()}
        self.taken_part = ParticipationCounts() if direction.counts or staleness.counts else None
        self.sends = isinstance(state, OwnState) and type(direction).send is not Direction.send
        # Whether `prepare` reads the elements of updates and models. If False, it uses only norms from the engine.
        self.reads_update = not on_host or state.asks or staleness.looks
        self.own = {}

    def asks(self) -> Native:
        """Return flags for the methods of this object that the engine must call."""
        return native.engine.Asks(
            prepare=self.always, step=self.optimizer.has_own_step, statistics=self.layout.has_buffers,
            bounds=not self.on_host,
        )  # fmt: skip

    @property
    def control(self) -> Tensor | None:
        """The control variate that is sent with a task (FedAC). None for other rules."""
        return getattr(self.state, "control", None)

    def sent(self, client: int | str) -> Tensor | dict[str, Tensor] | None:
        """Return the vectors that a client's task has besides the model, by name, or FedAC's control, or None."""
        return self.state.sent(client) if isinstance(self.state, OwnState) else self.control

    def weight(self, delay: int) -> float | None:
        """Return the weight that a user's own policy gives to an update of this delay. None: the update is dropped."""
        return results.weight(self.staleness, "weight", self.staleness.weight(delay))

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        """Return the learning rate of a step by a user's own policy. ``delays``: the delays of the step's updates."""
        return results.number(self.staleness, "rate", self.staleness.rate(lr, delays))

    def bounds(self, model: Tensor, moments: dict[str, Tensor]) -> tuple[float, float, float]:
        """Return upper bounds on the magnitudes of the model's elements, of the first and of the second moments."""
        return largest(model), *bounds_of(moments)

    def brought(self, update: list[Tensor], reported: Native | None) -> tuple[Pieces, ParsedUpdate | None]:
        """Return the update of a replayed answer on the device: its pieces, and the update in the form that Python
        reads. None: Python does not read the update. ``reported``: the update's statistics."""
        pieces = on_device(staging.upload(Pieces(update), self.device))
        if reported is None:
            return pieces, ParsedUpdate(pieces, None, None) if self.always else None
        buffers = None if reported.values is None else staging.upload(Pieces([reported.values]), self.device)
        counters = divided(reported.counters, self.held.counters) if reported.counters else None
        return pieces, ParsedUpdate(pieces, buffers, counters)

    def fits(self, values: int, counters: int) -> bool:
        """Return whether an answer with so many elements of buffers and of counters fits the model. 0 always fits."""
        own = sum(counter.numel() for counter in self.held.counters)
        return values in (0, self.layout.buffer_size) and counters in (0, own)

    def statistics(
        self, sent: Sequence[tuple[Native | None, float, float]], shares: Sequence[float], outcome: str
    ) -> Statistics | None:
        """Return the running statistics after these updates. None: the statistics do not change.

        Args:
            sent: for each update: its statistics (None: it has none), its share in a mean, and its clipping factor.
            shares: the weight of each update of the step, from a robust rule that compares updates. Otherwise empty.
            outcome: ``step``: the updates made a step. ``drop``: they were dropped. ``keep``: they wait for a step.
        """
        statistics = self.held
        for answer, share, gain in sent:
            statistics = statistics.add(*self._statistics_of(answer), share, gain)
        statistics = statistics.after(outcome, shares)
        return None if statistics is self.held else statistics

    def _statistics_of(self, answer: Native | ParsedUpdate | None) -> tuple[Tensor | None, Tensor | None]:
        """Return an answer's buffers and counters, each as one vector. None: the answer has no buffers or counters."""
        if answer is None:
            return None, None
        if isinstance(answer, ParsedUpdate):
            buffers, counters = answer.buffers, answer.counters
            values = None if buffers is None else staging.upload(buffers, self.device).flat(torch.float32)
            return values, None if counters is None else joined(counters, self.held.counters)
        numbers = answer.counters or None
        return answer.values, None if numbers is None else torch.tensor(numbers, dtype=torch.int64, device="cpu")

    def step(self, direction: Tensor, x: Tensor, lr: float, round: int) -> tuple[Tensor, Moves]:
        """Return the model after a step of a user's own optimizer, and the change of the optimizer's state."""
        optimizer = self.optimizer
        result, state = results.pair(optimizer, "step", optimizer.step(x, direction, dict(self.own), lr, round))
        flat = results.vector(optimizer, "step", result, x.numel(), x.device)
        limit = self.layout.largest
        if not (ops.inspect(flat).norm <= limit or float(flat.abs().max()) <= limit):
            raise UpdateTooLarge(f"step: {type(optimizer).__name__} made the model NaN or infinite in its own type")
        # `flat` may be one of the step's arguments, or the user's memory. So it is copied to the server's memory.
        return memory.empty(x.numel(), x.device).copy_(flat), [(self, "own", state)]

    # -- an update -------------------------------------------------------------------------------------------------

    def prepare(self, asked: Native) -> Native:
        """Return the results of Python's rules for an update, in the engine's form: its norm, its weight and others.
        ``asked``: the engine's question, with the update and the versions."""
        extra = self._extra(asked.control)
        findings = native.engine.findings()
        update: Native = asked.update if self.reads_update else None
        if update is not None and not isinstance(update, Pieces):
            update = Pieces(update)
        base = asked.kept if self.keeps_model and self.reads_update else None
        delay = asked.now - asked.version
        local_steps = asked.local_steps or None
        moved, cosine = self._measure(findings, update, asked, base)
        norm, clip = findings.norm, self.clip_norm
        gain = 1.0 if clip is None or norm <= clip else clip / norm
        client, parts = asked.client, self.taken_part
        facts = Facts(
            client, asked.version, delay, update, gain, norm, moved, local_steps, asked.share,
            asked.model if self.staleness.looks or self.state.asks else None, base if self.needs_base else None,
            0 if parts is None else parts.of(client), extra,
        )  # fmt: skip
        if self._weigh(findings, facts) and self.state.asks:
            self._ask_direction(findings, facts, asked, cosine)
            findings.reported_norm = norm
        if parts is not None and not findings.drops:
            findings.moves = [*(findings.moves or []), parts.one_more(client)]
        return findings

    def _extra(self, sent: Tensor | None) -> Mapping[str, Tensor]:
        """Check the vectors that a client sent besides an update, and return those of a user's own rule by name."""
        if sent is not None and not self.takes and not self.direction.takes_control:
            raise ConfigError("control: only FedAC takes one, got a control; leave it out")
        size = sum(self.takes.values()) if self.takes else self.layout.size
        if (sent is None and self.takes) or (sent is not None and sent.numel() != size):
            names = ", ".join(self.takes) or "control"
            numbers = 0 if sent is None else sent.numel()
            raise ConfigError(
                f"extra: this rule takes {names}, {size} numbers in all, besides an update, got {numbers}"
            )
        if sent is None or not self.takes:
            return {}
        return dict(zip(self.takes, sent.to(self.device).split(list(self.takes.values())), strict=True))

    def _measure(
        self, findings: Native, update: Pieces | None, asked: Native, base: Tensor | None
    ) -> tuple[float | None, float]:
        """Store the update's norm in ``findings``. Return the distance of the current model from the update's version,
        and the cosine between their difference and the update. If no rule needs the two numbers, return None and 0."""
        inner = self.direction.measures
        if self.measures and asked.has_base and self.on_host:
            apart = distances_from(asked.distances(inner))
        elif self.measures and asked.has_base:
            assert update is not None and base is not None
            apart = ops.distances(update, asked.model, base, inner=inner)
        elif self.on_host:  # the engine has measured the norm
            findings.norm = asked.norm
            return None, 0.0
        else:
            assert update is not None
            seen = ops.inspect(update)
            apart = Distances(seen.finite, 0.0, seen.norm, 0.0)
        if not apart.finite:
            raise NonFiniteUpdate("update: NaN or infinity")
        findings.norm = apart.norm
        product = apart.moved * apart.norm
        return apart.moved, apart.inner / product if product > 0.0 else 0.0

    def _weigh(self, findings: Native, facts: Facts) -> bool:
        if not (self.staleness.looks or self.staleness.measures):
            weight = self.weight(facts.delay)
        else:
            weight, findings.next_steps = self.staleness._weighed(facts)
            weight = results.weight(self.staleness, "weigh", weight)
        findings.weight, findings.drops = weight, weight is None
        return weight is not None

    def _ask_direction(self, findings: Native, facts: Facts, asked: Native, cosine: float) -> None:
        def statistics() -> tuple[Tensor, Tensor]:
            sent = self._statistics_of(asked.extra if isinstance(asked.extra, ParsedUpdate) else asked.reported)
            own = self.held.values if sent[0] is None else sent[0]
            return own, self.held.add(*sent, facts.share, facts.gain).after("step").values

        takes = self.direction.takes_control and asked.control is not None
        change = Pieces([asked.control.to(self.device)]) if takes else None
        self.state.before(
            Arrival(facts, findings.weight, cosine, change, statistics, asked.room, asked.total), findings
        )


def bounds_of(moments: dict[str, Tensor]) -> tuple[float, float]:
    """Return upper bounds on the magnitudes of the elements of ``m``, and of ``v`` and ``vhat``."""
    if "units" in moments:
        # An 8-bit moment of a block is less than these multiples of the block's unit (csrc/math/moments.h).
        rows = moments["units"].view(2 if "v" in moments else 1, -1)
        units = [float(row.max()) if row.numel() else 0.0 for row in rows]
        return 2.0**17 * units[0], 2.0**33 * units[-1] if "v" in moments else 0.0
    names = ("m",), ("v", "vhat")
    norms = [max([ops.inspect(moments[n]).norm for n in group if n in moments], default=0.0) for group in names]
    return norms[0], norms[1]


def largest(vector: Tensor) -> float:
    """Return an upper bound on the magnitudes of a vector's elements: the norm, or the maximum if the norm is huge."""
    norm = ops.inspect(vector).norm
    return norm if norm < 1e37 else float(vector.abs().max())
