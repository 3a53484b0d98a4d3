"""The Python part of a step: distances, a user's own rules, and running statistics.

Only the engine calls these methods, with the server's lock held and before anything has changed
(csrc/bindings/extension.h). A method may raise. It returns the changes that the commit will make. Most servers need
none of these methods.
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
    """Counts how many updates of each client have taken part in steps."""

    def __init__(self, times: Mapping[int | str, int] | None = None) -> None:
        self._slots = {client: slot for slot, client in enumerate(times or {})}
        self._times = np.zeros(max(64, 2 * len(self._slots)), np.int64)
        self._times[: len(self._slots)] = list((times or {}).values())

    def of(self, client: int | str) -> int:
        return int(self._times[self._slots[client]]) if client in self._slots else 0

    def one_more(self, client: int | str) -> Move:
        """Return the change that adds one to the client's number. The commit makes this change."""
        slot = self._slots.setdefault(client, len(self._slots))
        if slot == len(self._times):
            self._times = np.concatenate([self._times, np.zeros_like(self._times)])
        return self._times, slot, self.of(client) + 1

    def times(self) -> dict[int | str, int]:
        return {client: times for client in self._slots if (times := self.of(client))}


class Extension:
    """The Python part of one server's steps.

    Attributes:
        held: the running statistics of the current version.
        state: the direction's state.
        always: whether the engine calls :meth:`prepare` for every update.
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
        # `takes`: name -> how many numbers clients send under this name besides an update. `taken_part`: how often each
        # client took part, if a rule needs this.
        self.takes = {name: size or layout.size for name, size in {**direction.takes, **staleness.takes}.items()}
        self.taken_part = ParticipationCounts() if direction.counts or staleness.counts else None
        self.sends = isinstance(state, OwnState) and type(direction).send is not Direction.send
        # whether Python reads the numbers of updates and models. If not, it uses only norms that the engine measured.
        self.reads_update = not on_host or state.asks or staleness.looks
        self.own = {}

    def asks(self) -> Native:
        """Return which of this object's methods the engine must call."""
        return native.engine.Asks(
            prepare=self.always, step=self.optimizer.has_own_step, statistics=self.layout.has_buffers,
            bounds=not self.on_host,
        )  # fmt: skip

    @property
    def control(self) -> Tensor | None:
        """The control variate that is sent with a task (FedAC). None for other rules."""
        return getattr(self.state, "control", None)

    def sent(self, client: int | str) -> Tensor | dict[str, Tensor] | None:
        """Return the vectors that are sent with a client's task besides the model."""
        return self.state.sent(client) if isinstance(self.state, OwnState) else self.control

    def weight(self, delay: int) -> float | None:
        """Return the weight that a user's own policy gives to an update of this delay. None drops the update."""
        return results.weight(self.staleness, "weight", self.staleness.weight(delay))

    def rate(self, lr: float, delays: Sequence[int]) -> float:
        """Return the learning rate of a step, by a user's own rule."""
        return results.number(self.staleness, "rate", self.staleness.rate(lr, delays))

    def bounds(self, model: Tensor, moments: dict[str, Tensor]) -> tuple[float, float, float]:
        """Return bounds on the magnitudes of a version's elements, of its first moments and of its second moments."""
        return largest(model), *bounds_of(moments)

    def brought(self, update: list[Tensor], reported: Native | None) -> tuple[Pieces, ParsedUpdate | None]:
        """Return a replayed answer on the device: the update's pieces, and the parts that the engine does not read."""
        pieces = on_device(staging.upload(Pieces(update), self.device))
        if reported is None:
            return pieces, ParsedUpdate(pieces, None, None) if self.always else None
        buffers = None if reported.values is None else staging.upload(Pieces([reported.values]), self.device)
        counters = divided(reported.counters, self.held.counters) if reported.counters else None
        return pieces, ParsedUpdate(pieces, buffers, counters)

    def fits(self, values: int, counters: int) -> bool:
        """Return whether an answer with this many buffer values and counters fits the model. 0 always fits."""
        own = sum(counter.numel() for counter in self.held.counters)
        return values in (0, self.layout.buffer_size) and counters in (0, own)

    def statistics(
        self, sent: Sequence[tuple[Native | None, float, float]], shares: Sequence[float], outcome: str
    ) -> Statistics | None:
        """Return the running statistics after these updates. None: the statistics do not change.

        Args:
            sent: for each update: its statistics (None: it has none), its share in a mean, and its clipping factor.
            shares: the weight of each update of the step, by a rule that compares updates.
            outcome: whether the updates made a step (``step``), were dropped (``drop``) or wait (``keep``).
        """
        statistics = self.held
        for answer, share, gain in sent:
            statistics = statistics.add(*self._statistics_of(answer), share, gain)
        statistics = statistics.after(outcome, shares)
        return None if statistics is self.held else statistics

    def _statistics_of(self, answer: Native | ParsedUpdate | None) -> tuple[Tensor | None, Tensor | None]:
        """Return an answer's running statistics and counters, each as one vector. None where the answer has none."""
        if answer is None:
            return None, None
        if isinstance(answer, ParsedUpdate):
            buffers, counters = answer.buffers, answer.counters
            values = None if buffers is None else staging.upload(buffers, self.device).flat(torch.float32)
            return values, None if counters is None else joined(counters, self.held.counters)
        numbers = answer.counters or None
        return answer.values, None if numbers is None else torch.tensor(numbers, dtype=torch.int64, device="cpu")

    def step(self, direction: Tensor, x: Tensor, lr: float, round: int) -> tuple[Tensor, Moves]:
        """Do a step with a user's own optimizer."""
        optimizer = self.optimizer
        result, state = results.pair(optimizer, "step", optimizer.step(x, direction, dict(self.own), lr, round))
        flat = results.vector(optimizer, "step", result, x.numel(), x.device)
        limit = self.layout.largest
        if not (ops.inspect(flat).norm <= limit or float(flat.abs().max()) <= limit):
            raise UpdateTooLarge(f"step: {type(optimizer).__name__} made the model NaN or infinite in its own type")
        # `flat` is copied to the server's own memory, because the user's step may have returned one of its arguments.
        return memory.empty(x.numel(), x.device).copy_(flat), [(self, "own", state)]

    # -- an update -------------------------------------------------------------------------------------------------

    def prepare(self, asked: Native) -> Native:
        """Return Python's results for an update (the norm, the weight and others), in the engine's form."""
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
        """Return the vectors that a client sent besides an update, by name."""
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
        """Measure the update's norm. Return how far the model has moved since the update's version, and the cosine
        between this movement and the update. If no rule needs these numbers, return None and 0."""
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
    """Return bounds on the magnitudes of the elements of ``m`` and of ``v``."""
    if "units" in moments:
        # The largest codes are less than these multiples of a block's unit (csrc/math/moments.h).
        rows = moments["units"].view(2 if "v" in moments else 1, -1)
        units = [float(row.max()) if row.numel() else 0.0 for row in rows]
        return 2.0**17 * units[0], 2.0**33 * units[-1] if "v" in moments else 0.0
    names = ("m",), ("v", "vhat")
    norms = [max([ops.inspect(moments[n]).norm for n in group if n in moments], default=0.0) for group in names]
    return norms[0], norms[1]


def largest(vector: Tensor) -> float:
    """Return a bound on a vector's magnitudes: the norm, or the largest magnitude if the norm is huge."""
    norm = ops.inspect(vector).norm
    return norm if norm < 1e37 else float(vector.abs().max())
