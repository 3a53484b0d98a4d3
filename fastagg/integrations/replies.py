"""Reads a client's reply from any framework, and passes it to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from fastagg import _checks, lora
from fastagg._types import Arrays, Native
from fastagg.errors import AlreadyCounted, ConfigError, FastaggError, UnknownClient, UnknownVersion
from fastagg.rules.names import Kind
from fastagg.server.dispatch import Dispatch
from fastagg.server.server import Outcome, Server


class Over(UnknownVersion):
    """The server has ended the task (``lease``, ``max_delay``). That is no failure of its client."""


KINDS = ("model", "difference", "delta", "gradient", "lora")


@dataclass(frozen=True)
class Reply:
    """One client's answer to one task.

    Attributes:
        arrays: the arrays it sent, in the form of the server's model.
        kind: ``model``, the trained model; ``difference``, trained minus sent for every array, including
            BatchNorm's statistics; ``delta``, as for ``Server.receive``: differences of parameters, and new statistics;
            ``gradient``, for ACE, ACED, ASGD; ``lora``, adapters whose products are the delta (:mod:`fastagg.lora`).
        version: the version that the client trained from. None if the client does not state it.
        samples: its number of samples. None if the client does not state it.
        control: FedAC's change of the control variate, flat [d].
        scale: of ``lora``: ``lora_alpha / rank``.
    """

    arrays: Arrays
    kind: str = "model"
    version: int | None = None
    samples: float | None = None
    control: Tensor | None = None
    scale: float = 1.0

    @classmethod
    def read(cls, arrays: Arrays, told: Mapping[str, object], *, prefix: str = "fastagg-", **more: Any) -> Reply:
        """Read a reply. ``told`` (a config record or meta dict) may state its kind, version and scale.

        The keys are ``<prefix>kind`` and so on.

        Args:
            more: the other attributes. Its ``kind`` is the default.

        Raises:
            ConfigError: the kind is not in :data:`KINDS`, the version is not an integer, or the scale is not a number.
        """
        if f"{prefix}kind" in told:
            more["kind"] = _checks.one_of(f"{prefix}kind", told[f"{prefix}kind"], KINDS)
        if f"{prefix}version" in told:
            more["version"] = version = told[f"{prefix}version"]
            if isinstance(version, bool) or not isinstance(version, int):
                raise ConfigError(f"{prefix}version: expected a whole number, got {version!r}")
        if f"{prefix}scale" in told:
            more["scale"] = _checks.number(f"{prefix}scale", told[f"{prefix}scale"])
        return cls(arrays, **more)


@dataclass(frozen=True)
class Ready:
    """A reply of which all is checked but the numbers of its parameters. ``model`` is what the server adds; None: the
    reply is no trained model, and is received by itself."""

    task: Dispatch
    reply: Reply
    model: tuple[Native, Arrays] | None


def ready(server: Server, task: Dispatch, reply: Reply) -> Ready:
    """Check a reply before it is added.

    Raises:
        FastaggError: it is refused.
    """
    if reply.version not in (None, task.version):
        raise UnknownVersion(f"it is from version {reply.version}, its task was version {task.version}")
    if (reply.kind == "gradient") != (server.update_kind == "gradient"):
        raise ConfigError(f"this server takes updates of kind {server.update_kind!r}, got one of kind {reply.kind!r}")
    differs = reply.kind == "difference"
    if not differs and (reply.kind != "model" or reply.control is not None):
        return Ready(task, reply, None)
    arrays = task.from_difference(reply.arrays) if differs else reply.arrays
    try:
        return Ready(task, reply, server._read_model(task, arrays, reply.samples, difference=differs))
    except (UnknownClient, UnknownVersion) as error:
        raise _over(error) from None


def add(server: Server, given: Sequence[Ready], *, in_place: bool = False) -> list[Outcome]:
    """Pass replies to the server. Models take one pass over memory for each step.

    Args:
        in_place: check models in a pass of its own, and then add them where the sum is. That saves the memory of a
            second sum, and reads each of them twice. Nobody may write to them meanwhile.

    Returns:
        For each its receipt, or the error that refused it. A refused reply changes nothing.
    """
    found: dict[int, Outcome] = {}
    for i, one in enumerate(given):
        if one.model is None:
            try:
                found[i] = _received(server, one.task, one.reply)
            except FastaggError as error:
                found[i] = error
    models = {i: one.model for i, one in enumerate(given) if one.model is not None}
    if models:
        direction = server._running.extension.state.native
        in_place = in_place and hasattr(direction, "in_place")
        try:
            if in_place:
                direction.in_place = True
            found.update(zip(models, server._add_models(list(models.values())), strict=True))
        finally:  # it is said for these models only
            if in_place:
                direction.in_place = False
    outcomes = [found[i] for i in range(len(given))]
    return [bare(_over(outcome)) if isinstance(outcome, FastaggError) else outcome for outcome in outcomes]


def take(server: Server, answers: Sequence[tuple[Dispatch, Reply]], *, in_place: bool = False) -> list[Outcome]:
    """Check answers, and add them as :func:`add` does."""
    outcomes: list[Outcome | None] = [None] * len(answers)
    given = {}
    for i, (task, reply) in enumerate(answers):
        try:
            given[i] = ready(server, task, reply)
        except FastaggError as error:
            outcomes[i] = bare(error)
    for i, outcome in zip(given, add(server, list(given.values()), in_place=in_place), strict=True):
        outcomes[i] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def bare(error: FastaggError) -> FastaggError:
    """``error`` without the frames that it went through: they hold the reply's arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def end(server: Server, task: Dispatch) -> bool:
    """End a task that will not be answered. Return whether it was still open: the server ends tasks too (``lease``,
    ``max_delay``), at any time."""
    try:
        server.forget(task.client, task.version)
    except (UnknownClient, UnknownVersion):
        return False
    return True


def _over(error: FastaggError) -> FastaggError:
    """What the server says of an adapter's own task, which it no longer has."""
    gone = isinstance(error, (UnknownClient, UnknownVersion)) and not isinstance(error, (AlreadyCounted, Over))
    return Over(f"its task is over: {error}") if gone else error


def _received(server: Server, task: Dispatch, reply: Reply) -> Outcome:
    update, kind = reply.arrays, reply.kind
    if kind == "model":
        update, kind = task.delta(reply.arrays), "delta"
    elif kind == "lora":
        shapes = {entry.name: entry.shape for entry in server.layout.entries}
        update, kind = lora.products(reply.arrays, shapes, reply.scale), "delta"
    return server.receive(
        task.client, update, task.version, reply.samples, kind=cast(Kind, kind), control=reply.control,
        incarnation=task.incarnation, task=task.id,
    )  # fmt: skip
