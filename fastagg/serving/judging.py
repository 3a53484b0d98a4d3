"""Examines an update before its step is planned, if a rule needs more than the native road does by itself.

There are three ways to examine an update. The road itself does the usual check on the processor: finite values, the
norm, clipping, a weight from the delay. This module has the other two. Some rules need more before they can plan:
distances, or a direction or policy in Python. And on a CUDA device the kernels obey the device's verdict, which the
host reads later.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastagg import ops
from fastagg.errors import ConfigError
from fastagg.layout import Parsed
from fastagg.ops.place import on_device
from fastagg.parts.directions import Arrival
from fastagg.parts.staleness import Facts
from fastagg.serving import admission, rounds
from fastagg.serving.dispatch import Receipt
from fastagg.serving.runner import on_host
from fastagg.storage import staging
from fastagg.storage.later import Later
from fastagg.storage.pieces import Pieces

if TYPE_CHECKING:
    from fastagg.serving.server import Server

More = dict[str, Any]


class Judging:
    """Examines the updates of one server.

    Attributes:
        folds: whether trained models can be added without computing their differences first.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        direction, core = server.direction, server._core
        self.measures = core.settings.staleness.measures or direction.measures
        self.host = on_host(server.device)
        self.defers = server.validate == "deferred" and not self.host
        self.always = core.always
        self.folds = (
            self.host and not self.always and direction.buffered and direction.kind == "delta"
            and getattr(direction, "size", None) != 1 and server.clip_norm is None and server.layout.all_fp32
            and not server.optimizer.has_own_step
        )  # fmt: skip

    def asks(self, parsed: Parsed, control: Any) -> bool:
        """Return whether an update needs this examination."""
        return (
            self.always or parsed.buffers is not None or parsed.counters is not None or control is not None
            or self.server._core.statistics.count > 0
        )  # fmt: skip

    def judge(
        self, client: Any, version: Any, parsed: Parsed, share: float, control: Any, known: More | None = None
    ) -> More:
        """Return the findings for the road, see csrc/serving/road.cpp: ``judged``, ``norm``, ``weight``, ``drop``,
        ``next_steps``, ``share``, ``pieces``, ``waits``, ``moves``, ``then``, ``statistics``.

        Raises:
            UnknownClient, UnknownVersion, NonFiniteUpdate, ConfigError and others: the update is refused; nothing has
                changed.
        """
        server, core = self.server, self.server._core
        change = None if control is None else self._control(control)
        if not self.defers:
            admission.refuse_non_finite_buffers(parsed)
        more: More = core.agreed({"share": share, **(known or {})})
        statistics = core.statistics_of([parsed])
        if statistics is not None:
            more["statistics"] = lambda kind: statistics(1, kind)
        if not self.always:
            return more
        start, told = core.ledger.find(client, version)
        client = core.ledger.identify(client)
        pieces = staging.upload(parsed.parameters, server.device)
        more["pieces"] = pieces if self.host else on_device(pieces)
        base = core.ledger.payload(start) if core.keeps_model else None
        delay = core.ledger.version - start
        if self.defers:
            facts = Facts(client, start, delay, pieces, 1.0, math.nan, None, told or None)
            return self._deferred(more, facts, parsed, base)
        more |= self._looked(parsed, pieces, base)
        norm, cosine, moved = more["norm"], more.pop("cosine", 0.0), more.pop("moved", None)
        clip = server.clip_norm
        gain = 1.0 if clip is None or norm <= clip else clip / norm
        kept = None if core.keeps_model else core.ledger.payload(start)
        facts = Facts(client, start, delay, pieces, gain, norm, moved, told or None, kept)
        weight = self._weigh(facts, more)
        if weight is None:
            return more
        if server.deterministic:
            return self._wait(more, facts, parsed, weight, share, version)
        if core.state.asks:
            self._ask_direction(more, facts, parsed, weight, share, base, cosine, change)
            more["update_norm"] = norm
        self._ask_policy(more, facts, weight)
        return more

    def _looked(self, parsed: Parsed, pieces: Pieces, base: Tensor | None) -> More:
        """Return the update's norm; if a rule needs them, also how far the model has moved, and the cosine of both."""
        core, direction = self.server._core, self.server.direction
        if not self.measures or base is None:
            seen = core.norms.inspect(pieces)
            admission.refuse_non_finite(self.server.layout, parsed, seen.finite)
            return {"judged": True, "norm": seen.norm}
        found = core.norms.distances(pieces, core.road.flat, base, inner=direction.measures)
        admission.refuse_non_finite(self.server.layout, parsed, found.finite)
        product = found.moved * found.norm
        cosine = found.inner / product if product > 0.0 else 0.0
        return {"judged": True, "norm": found.norm, "moved": found.moved, "cosine": cosine}

    def _weigh(self, facts: Facts, more: More) -> float | None:
        core = self.server._core
        if core.policy.looks:
            weight, steps = core.policy.weigh(facts)
            more["next_steps"] = steps
        else:
            weight = self.server.staleness.weight(facts.delay)
        if weight is None:
            more["drop"] = True
        else:
            more["weight"] = weight
        return weight

    def _ask_direction(
        self, more: More, facts: Facts, parsed: Parsed, weight: float, share: float, base: Tensor | None,
        cosine: float, change: Pieces | None,
    ) -> None:  # fmt: skip
        core = self.server._core

        def statistics() -> tuple[Tensor, Tensor]:
            held, device = core.statistics, self.server.device
            own = held.values if parsed.buffers is None else parsed.buffers.flat(torch.float32)
            return own.to(device), held.values_after(parsed)

        core.state.book.check(facts.client, facts.version, core.ledger.version)
        arrival = Arrival(
            facts.client, facts.update, facts.version, core.ledger.version, facts.gain, weight, share, base, cosine,
            change, statistics,
        )  # fmt: skip
        more |= core.state.before(arrival)

    def _ask_policy(self, more: More, facts: Facts, weight: float) -> None:
        server, core = self.server, self.server._core
        if core.policy.looks and server.direction.single:
            lr = server.staleness.rate(server.optimizer.lr, [facts.delay])
            moves = core.policy.moves(facts, lr * weight * server.direction.sign)
            more["moves"] = [*more.get("moves", ()), *moves]

    def _wait(self, more: More, facts: Facts, parsed: Parsed, weight: float, share: float, version: Any) -> More:
        """Keep an update until its round is complete. The last update of a round completes it."""
        core, size = self.server._core, self.server.direction.size
        core.state.book.check(facts.client, facts.version, core.ledger.version)
        entry = rounds.Entry(
            facts.client, facts.version, facts.gain, weight, share, facts.norm,
            Parsed(facts.update, parsed.buffers, parsed.counters),
        )  # fmt: skip
        if len(core.round) + 1 != size:
            core.road.check_round([one.native() for one in (*core.round, entry)])
            mine = entry._replace(parsed=rounds.kept(entry.parsed))
            return {**more, "waits": True, "statistics": None, "moves": [(core, "round", (*core.round, mine))]}
        entries = rounds.in_order([*core.round, entry])
        asked = core.statistics_of([one.parsed for one in entries])
        last = core.agreed({
            "moves": [(core, "round", ())], "norm": facts.norm, "weight": weight,
            "statistics": None if asked is None else (lambda kind: asked(len(entries), kind)),
        })  # fmt: skip

        def receipt() -> Receipt:
            found = core.road.close_round([one.native() for one in entries], True, facts.client, facts.version, last)
            self.server._follow()
            applied, now, delay, step_size, _, _ = found
            return Receipt(facts.client, applied, now, delay, step_size, facts.norm, weight)

        return {"receipt": receipt}

    def _deferred(self, more: More, facts: Facts, parsed: Parsed, base: Tensor | None) -> More:
        """Let the device decide. The host does not wait for it."""
        server, core = self.server, self.server._core
        x, measured = (core.road.flat, base) if self.measures else (None, None)
        verdict = ops.judge(facts.update, x=x, base=measured, clip_norm=server.clip_norm, **core.policy.rules())
        if parsed.buffers is not None:
            there = staging.upload(parsed.buffers, server.device)
            parsed, statistics = parsed._replace(buffers=there), ops.judge(there)
            verdict[5:].mul_(statistics[5:])
        answer = Later(verdict)
        asked = core.statistics_of([parsed], verdict)
        more |= {
            "judged": True, "norm": math.nan,
            "weight": 1.0 if self.measures else server.staleness.weight(facts.delay),
            "statistics": None if asked is None else (lambda kind: asked(1, kind)),
        }  # fmt: skip
        pieces, share = more["pieces"], more["share"]

        def receipt() -> Receipt:
            assert core.there is not None
            core.policy.judged(facts, answer)
            core.there.verdict = verdict
            try:
                found = core.road.receive(facts.client, facts.version, pieces.native, share, more)
            finally:
                core.there.verdict = None
            self.server._follow()
            scales = bool(core.state.book.immediate)
            return Receipt.deferred(
                facts.client, found.version, found.delay, found.step_size, found.weight, scales, answer
            )

        return {"receipt": receipt}

    def _control(self, control: Any) -> Pieces:
        if not self.server.direction.takes_control:
            raise ConfigError("control: only FedAC takes one")
        return admission.control(self.server.layout, control).to(self.server.device)
