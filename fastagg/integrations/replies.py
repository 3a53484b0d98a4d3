"""Reads a client's reply from any framework, and passes it to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, cast

from torch import Tensor

from fastagg import _checks, lora
from fastagg._types import Arrays
from fastagg.errors import AlreadyCounted, ConfigError, FastaggError, UnknownClient, UnknownVersion
from fastagg.rules.names import Kind
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Outcome, Server
from fastagg.storage.encoded import Encoded


class Over(UnknownVersion):
    """The server has ended the task (``lease``, ``max_delay``). That is no failure of its client."""


KINDS = ("model", "difference", "delta", "gradient", "lora", "encoded")


@dataclass(frozen=True)
class Reply:
    """One client's answer to one task.

    Attributes:
        arrays: the arrays it sent, in the form of the server's model.
        kind: ``model``, the trained model; ``difference``, trained minus sent for every array, including
            BatchNorm's statistics; ``delta``, as for ``Server.receive``: differences of parameters, and new statistics;
            ``gradient``, for ACE, ACED, ASGD; ``lora``, adapters whose products are the delta (:mod:`fastagg.lora`);
            ``encoded``, the arrays of a :class:`fastagg.Encoded` delta or gradient, as the server's rule takes it.
        version: the version that the client trained from. None if the client does not state it.
        samples: its number of samples. None if the client does not state it.
        control: FedAC's change of the control variate, flat [d].
        extra: what a rule of the user's own takes besides, by name.
        scale: of ``lora``: ``lora_alpha / rank``.
        metrics: what it says of itself, or of the model that it was sent.
    """

    arrays: Arrays
    kind: str = "model"
    version: int | None = None
    samples: float | None = None
    control: Tensor | None = None
    extra: Mapping[str, Tensor] | None = None
    scale: float = 1.0
    metrics: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, arrays: Arrays, stated: Mapping[str, object], *, prefix: str = "fastagg-", **more: Any) -> Reply:
        """Read a reply. ``stated`` (a config record or meta dict) may state its kind, version and scale.

        The keys are ``<prefix>kind`` and so on.

        Args:
            more: the other attributes. Its ``kind`` is the default.

        Raises:
            ConfigError: the kind is not in :data:`KINDS`, the version is not an integer, or the scale is not a number.
        """
        if f"{prefix}kind" in stated:
            more["kind"] = _checks.one_of(f"{prefix}kind", stated[f"{prefix}kind"], KINDS)
        if f"{prefix}version" in stated:
            more["version"] = version = stated[f"{prefix}version"]
            if isinstance(version, bool) or not isinstance(version, int):
                raise ConfigError(f"{prefix}version: expected a whole number, got {version!r}")
        if f"{prefix}scale" in stated:
            more["scale"] = _checks.number(f"{prefix}scale", stated[f"{prefix}scale"])
        return cls(arrays, **more)


def fitted(server: Server, task: Dispatch, reply: Reply) -> Reply:
    """The reply as the server takes it: a ``model`` that comes alone, a ``delta`` or a ``gradient``."""
    if reply.version not in (None, task.version):
        raise UnknownVersion(f"it is from version {reply.version}, its task was version {task.version}")
    if reply.kind == "encoded":
        return replace(reply, arrays=Encoded.from_arrays(reply.arrays), kind=server.update_kind)
    if (reply.kind == "gradient") != (server.update_kind == "gradient"):
        raise ConfigError(f"this server takes updates of kind {server.update_kind!r}, got one of kind {reply.kind!r}")
    if reply.kind == "difference":
        return replace(reply, arrays=task.from_difference(reply.arrays), kind="delta")
    if reply.kind == "lora":
        shapes = {entry.name: entry.shape for entry in server.layout.entries}
        return replace(reply, arrays=lora.products(reply.arrays, shapes, reply.scale), kind="delta")
    if reply.kind == "model" and (reply.control is not None or reply.extra is not None):
        return replace(reply, arrays=task.delta(reply.arrays), kind="delta")
    return reply


def take(
    server: Server, answers: Sequence[tuple[Dispatch, Reply | FastaggError]], *, still: bool = False
) -> list[Outcome]:
    """Pass replies to the server, one after the other. Models and deltas take one pass over memory for each step.

    Args:
        answers: tasks and their replies. An error stands for a reply that could not be read.
        still: nobody writes to the replies meanwhile. Models and deltas are then read twice and added where the sum is,
            which saves the memory of a second sum.

    Returns:
        For each its receipt, or the error that refused it. A refused reply changes nothing.
    """
    given: list[tuple[Dispatch, Reply | FastaggError]] = []
    for task, reply in answers:
        try:
            given.append((task, reply if isinstance(reply, FastaggError) else fitted(server, task, reply)))
        except FastaggError as error:
            given.append((task, error))
    outcomes: list[Outcome] = []
    for way, some in groupby(given, lambda one: _way(one[1])):
        found = list(some)
        if way in ("model", "delta"):
            models = [(task, reply.arrays, reply.samples) for task, reply in found]  # type: ignore[union-attr]
            outcomes += map(_outcome, server._receive_models(models, way == "delta", still=still))
        elif way == "refused":
            outcomes += [bare(error) for _, error in found]  # type: ignore[arg-type]
        else:
            outcomes += [_outcome(_received(server, task, reply)) for task, reply in found]  # type: ignore[arg-type]
    return outcomes


def _way(reply: Reply | FastaggError) -> str:
    """Which way a reply goes: with others of its kind in one pass (``model``, ``delta``), or not."""
    if isinstance(reply, FastaggError):
        return "refused"
    return reply.kind if reply.control is None and reply.extra is None else "with more"


def _received(server: Server, task: Dispatch, reply: Reply) -> Outcome:
    try:
        return server.receive(
            task.client, reply.arrays, task.version, reply.samples, kind=cast(Kind, reply.kind), control=reply.control,
            extra=reply.extra, incarnation=task.incarnation, task=task.id,
        )  # fmt: skip
    except FastaggError as error:
        return error


def _outcome(outcome: Outcome) -> Outcome:
    """What the server says of an adapter's own task. That it does not have it any more is an event."""
    if isinstance(outcome, Receipt):
        return outcome
    gone = isinstance(outcome, (UnknownClient, UnknownVersion)) and not isinstance(outcome, AlreadyCounted)
    return Over(f"its task is over: {outcome}") if gone else bare(outcome)


def bare(error: FastaggError) -> FastaggError:
    """``error`` without the frames that it went through: they hold the reply's arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
