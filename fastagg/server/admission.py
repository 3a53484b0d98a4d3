"""Checks updates that the compiled engine cannot read itself, and converts them to the engine's form. These are for
example encoded updates, trained models and leaves' sums. This module changes no server. Server, leaves and the
integration for Ray call it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fastagg import _checks, ops
from fastagg._build import native
from fastagg._types import Arrays, Native
from fastagg.errors import ConfigError, DTypeMismatch, FastaggError, NonFiniteUpdate, ShapeMismatch
from fastagg.model import Layout, ParsedUpdate
from fastagg.ops.place import on_device
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Partial, Samples, check_task
from fastagg.server.engine import Runtime, ServerParts, reported
from fastagg.storage import staging
from fastagg.storage.encoded import Encoded
from fastagg.storage.pieces import Pieces, checked

_HEAVIEST = 1e30  # the largest weight of an update. fp32 sums of such weights, and their inverses, stay finite.
# The engine's message. The engine does not know the names of arrays.
_NOT_FINITE = "update: NaN or infinity"


class Admission:
    """Converts the updates in answers to the engine's form (``native.engine.Numbers``)."""

    def __init__(self, parts: ServerParts, running: Runtime) -> None:
        self.parts, self.running = parts, running
        self.logs = False  # whether the server has a log. The log needs a copy of each update in host memory.

    def refuse_other_kind(self, kind: object) -> None:
        """Refuse an update if its sender states another kind than the server's. ``kind``: the stated kind, or None."""
        own = self.parts.direction.kind
        if isinstance(kind, str) and kind != own:
            raise ConfigError(
                f"kind: this server takes updates of kind {own!r}, got one of kind {kind!r}; "
                f"send a {own}: server.receive(client, {own})"
            )

    def parse(self, update: Arrays, kind: object) -> ParsedUpdate:
        """Divide an update into parameters, buffers and counters. ``kind``: the sender's stated kind, or None."""
        layout, own = self.parts.layout, self.parts.direction.kind
        if type(update) is torch.Tensor and kind is None:
            return layout.parse(update)
        if isinstance(update, torch.nn.Module):
            do = "give a trained model to server.receive_model(task, model)"
            raise ShapeMismatch(_checks.wrong("update", f"a {own}, in the form of params", update, do))
        self.refuse_other_kind(kind or getattr(update, "kind", None))
        return layout.parse(update)

    def of(self, parsed: ParsedUpdate, control: object = None, extra: object = None) -> Native:
        """Return an update in the engine's form. ``control``, ``extra``: as in :meth:`fastagg.Server.receive`."""
        parts = self.parts
        refuse_non_finite_buffers(parsed)
        looked_at = self.running.extension.always or parsed.buffers is not None or parsed.counters is not None
        if parts.on_host:
            answer = native.engine.numbers(parsed.parameters)
            answer.reported = reported(parsed, self.running.extension.held)
        elif parsed.parameters.is_encoded and not looked_at:  # the bytes are copied to the device and decoded there
            answer = native.engine.numbers(parsed.parameters)
            answer.from_host()
        else:
            parsed = parsed._replace(parameters=parsed.parameters.plain())
            pieces = on_device(staging.upload(parsed.parameters, parts.device))
            answer = native.engine.numbers(pieces)
            if looked_at:
                buffers = None if parsed.buffers is None else staging.upload(parsed.buffers, parts.device)
                answer.with_extra(ParsedUpdate(pieces, buffers, parsed.counters))
            if self.logs:
                host = torch.device("cpu")
                answer.with_copy(parsed.parameters.to(host))
                buffers = None if parsed.buffers is None else parsed.buffers.to(host)
                answer.reported = reported(parsed._replace(buffers=buffers), self.running.extension.held)
        if control is not None:
            answer.with_control(checked_control(parts.layout, control).flat(torch.float32).cpu())
        if extra is not None:
            answer.with_control(checked_extra(self.running.extension.takes, extra))
        return answer

    def read(self, answer: Answer) -> Answer:
        """Return an answer with the update in the engine's form, and the number of samples as a float or None."""
        if answer.kind == "partial":
            self.check_sum(answer.update)
            numbers = self.of_sum(answer.update)
        elif isinstance(answer.update, native.engine.Numbers):
            numbers = answer.update
        elif answer.kind == "model" or not answer.measures:
            numbers = self.of_model(answer)
        else:
            numbers = self.of(self.parse(answer.update, answer.kind), answer.control, answer.extra)
        return Answer(
            answer.client, numbers, answer.version, samples(answer.num_samples, self.parts.settings["weighting"]),
            answer.task, answer.offset, answer.incarnation, still=answer.still,
        )  # fmt: skip

    def check(self, answer: Answer) -> None:
        """Check everything in an answer except the values of the update's parameters."""
        share(answer.num_samples, self.parts.settings["weighting"])
        refuse_non_finite_buffers(self.parts.layout.parse(answer.update))

    def of_model(self, answer: Answer) -> Native:
        """Return an answer's update in the engine's form. The answer has a trained model, or a delta whose norm is not
        needed (``Answer.measures``)."""
        layout, task, trained = self.parts.layout, answer.sent, answer.update
        is_difference, is_encoded = answer.kind != "model", isinstance(trained, Encoded)
        self.refuse_other_kind(answer.kind if is_difference else "delta")
        if not is_difference and not is_encoded:
            task = check_task(task)
            if self.parts.on_host and layout.all_fp32:
                if task.flat.numel() != layout.size:
                    raise ShapeMismatch(_checks.wrong("task", "a task of this server", task))
                # A model in a type that no update may have, such as fp64, raises DTypeMismatch here. Its difference is
                # computed below.
                with contextlib.suppress(DTypeMismatch):
                    numbers = self.of(layout.parse(trained, "trained model"), answer.control, answer.extra)
                    numbers.less(task)
                    return numbers
            trained = task.delta(trained)
        numbers = self.of(layout.parse(trained), answer.control, answer.extra)
        if self.parts.on_host and not answer.measures and not is_encoded:
            numbers.less(None)
        return numbers

    def of_sum(self, partial: Partial) -> Native:
        """Return a leaf's sum in the engine's form."""
        answer = self.of(ParsedUpdate(self.parts.layout.parse(partial.total).parameters, None, None))
        answer.sum_of(partial.updates, float(partial.weight), partial.clients)
        return answer

    def check_sum(self, partial: Partial) -> None:
        """Check everything in a leaf's sum except the values of ``total``. Also refuse a rule that takes no sums."""
        settings, extension = self.parts.settings, self.running.extension
        check_partial(partial, settings["weighting"])
        adds_up = self.parts.direction.buffered and not extension.state.asks and not settings["deterministic"]
        if not adds_up or extension.measures:
            raise ConfigError(
                "receive_partial: only for rules that add updates up (FedBuff, FADAS, FedAvg and its kin), not "
                "deterministic, and without weights that follow distances"
            )


def check_partial(partial: Partial, weighting: str) -> None:
    """Check everything in a leaf's sum except the values of ``total``."""
    if not isinstance(partial, Partial):
        raise ConfigError(_checks.wrong("partial", "what a fastagg.Leaf's take() returned", partial))
    _checks.whole("updates", partial.updates, least=1, most=2**31 - 1)
    _checks.number("weight", partial.weight, least=0)
    if len({*partial.clients}) < len(partial.clients) or len(partial.clients) > partial.updates:
        raise ConfigError(
            f"clients: a sum of {partial.updates} updates has each client once, got {partial.clients!r:.100}"
        )
    if weighting == "uniform" and partial.weight != partial.updates:
        raise ConfigError(
            f"weight: with weighting='uniform' it is the number of updates, {partial.updates}, got {partial.weight}"
        )


def samples(stated: Any, weighting: str) -> float | None:
    """Return a client's number of samples as a float, or None if ``stated`` is None. A pair (tokens, steps) becomes
    tokens*tokens/steps. ConfigError: the number is negative, or neither 0 nor in 1e-30..1e30."""
    if stated is None:
        return None
    if isinstance(stated, (tuple, list)):
        if weighting != "tokens" or len(stated) != 2:
            raise ConfigError(f'num_samples: a pair (tokens, steps) belongs to weighting="tokens", got {stated!r:.100}')
        tokens = float(_checks.number("tokens", _plain(stated[0]), least=0))
        stated = tokens * tokens / float(_checks.number("steps", _plain(stated[1]), above=0))
    number = float(_checks.number("num_samples", _plain(stated), least=0))
    if number and not 1.0 / _HEAVIEST <= number <= _HEAVIEST:
        raise ConfigError(f"num_samples: expected 0 or a number in 1e-30..1e30, got {number!r}")
    return number


def share(num_samples: Samples | None, weighting: str) -> float:
    """Return a client's weight in a mean: 1 with ``weighting="uniform"``, otherwise its number of samples."""
    number = samples(num_samples, weighting)
    if weighting == "uniform":
        return 1.0
    if number is None:
        raise ConfigError(
            'num_samples: needed with weighting="samples" and "tokens", got None; '
            "write receive(..., num_samples=len(data))"
        )
    return number


def named(error: NonFiniteUpdate, layout: Layout, update: object) -> NonFiniteUpdate:
    """Return an error whose message names the update's first bad array, if ``error`` is the engine's. Otherwise, and if
    the update cannot be parsed, return ``error``."""
    if str(error) != _NOT_FINITE:
        return error
    try:
        return non_finite(layout, layout.parse(update))
    except FastaggError:
        return error


def non_finite(layout: Layout, parsed: ParsedUpdate) -> NonFiniteUpdate:
    """Return an error that names the first parameter of ``parsed`` that is not finite."""
    where = _culprits(layout, parsed.parameters)
    return NonFiniteUpdate(f"update: NaN or infinity in {where}; nothing has changed: lower the client's learning rate")


def refuse_non_finite_buffers(parsed: ParsedUpdate) -> None:
    """Refuse running statistics that are not finite."""
    if parsed.buffers is not None and not ops.inspect(parsed.buffers).finite:
        raise NonFiniteUpdate("update: NaN or infinity in its buffers (running statistics)")


def checked_control(layout: Layout, control: object) -> Pieces:
    """Return a change of a client's control variate (FedAC) as pieces. ``control`` has the form of an update."""
    pieces = layout.parse(control, "control").parameters
    if not ops.inspect(pieces).finite:
        raise NonFiniteUpdate("control: NaN or infinity")
    return pieces


def checked_extra(takes: Mapping[str, int], extra: object) -> Tensor:
    """Return the vectors that a client sends besides an update, joined to one fp32 vector in the order of ``takes``.
    ``takes``: name -> the number of elements. ``extra``: name -> the vector."""
    if not isinstance(extra, Mapping) or extra.keys() != takes.keys():
        names = f"a dict with {', '.join(map(repr, takes))}" if takes else "nothing: this server's rule takes none"
        raise ConfigError(_checks.wrong("extra", names, extra))
    vectors = []
    for name, size in takes.items():
        try:
            vector = torch.as_tensor(checked(extra[name]), dtype=torch.float32, device="cpu").detach().reshape(-1)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(_checks.wrong(f"extra: {name}", "numbers", extra[name])) from error
        if vector.numel() != size:
            raise ShapeMismatch(f"extra: {name}: expected {size} numbers, got {vector.numel()}")
        if not bool(torch.isfinite(vector).all()):
            raise NonFiniteUpdate(f"extra: {name}: NaN or infinity")
        vectors.append(vector)
    return torch.cat(vectors)


def _culprits(layout: Layout, pieces: Pieces) -> str:
    names = [entry.name for entry in layout.entries if entry.role == "parameter"]
    if names == [""] or len(pieces.owners) != len(names):
        return "the flat vector"
    bad = [n for n, piece in zip(names, pieces.owners, strict=True) if not ops.inspect(piece).finite]
    if not bad:  # another thread has overwritten the bad number in the meantime
        return "it"
    return f"{bad[0]!r}" + (f" and {len(bad) - 1} more" if len(bad) > 1 else "")


def _plain(value: Arrays) -> Arrays:
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):  # not an array, or an array with several numbers
        return value
