"""Reads a client's reply from any framework: what it is, by its own words, as an answer to its task.

It changes nothing, and a reply that does not fit raises a named error. Adapters alone call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastagg import _checks, lora
from fastagg._types import Arrays
from fastagg.errors import AlreadyCounted, ConfigError, FastaggError, UnknownClient, UnknownVersion
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Outcome, Server
from fastagg.storage.encoded import Encoded


class LateReply(UnknownVersion):
    """The server has ended the task (``lease``, ``max_delay``). That is no failure of its client."""


class ClientFailure(FastaggError):
    """No reply came in time, or an error of the client, or of the framework in its place."""


KINDS = ("model", "difference", "delta", "gradient", "lora", "encoded")


def answer(
    server: Server, task: Dispatch, arrays: Arrays, stated: Mapping[str, object], *, kind: str = "model",
    prefix: str = "fastagg-", samples: float | None = None, control: Any = None, extra: Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """Return a reply as the answer to its task.

    Args:
        arrays: the arrays it sent, in the form of the server's model.
        stated: a config record or meta dict. It may state ``<prefix>kind``, ``<prefix>version`` (that the client
            trained from) and ``<prefix>scale`` (of ``lora``: ``lora_alpha / rank``).
        kind: if it states none. ``model``, the trained model; ``difference``, trained minus sent for every array,
            including BatchNorm's statistics; ``delta``, as for ``Server.receive``: differences of parameters, and new
            statistics; ``gradient``, for ACE, ACED, ASGD; ``lora``, adapters whose products are the delta
            (:mod:`fastagg.lora`); ``encoded``, the arrays of a :class:`fastagg.Encoded` delta or gradient, as the
            server's rule takes it.
        samples: its number of samples. None if the client does not state it.
        control: FedAC's change of the control variate, flat [d].
        extra: what a rule of the user's own takes besides, by name.

    Raises:
        ConfigError: the kind is not in :data:`KINDS` or not the server's, the version is not an integer, or the scale
            is not a number. UnknownVersion: it is of another version than its task.
    """
    version, scale = stated.get(f"{prefix}version"), 1.0
    if f"{prefix}kind" in stated:
        kind = _checks.one_of(f"{prefix}kind", stated[f"{prefix}kind"], KINDS)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise ConfigError(f"{prefix}version: expected a whole number, got {version!r}")
    if f"{prefix}scale" in stated:
        scale = _checks.number(f"{prefix}scale", stated[f"{prefix}scale"])
    if version not in (None, task.version):
        raise UnknownVersion(f"it is from version {version}, its task was version {task.version}")
    if kind == "encoded":
        arrays, kind = Encoded.from_arrays(arrays), server.update_kind
    elif (kind == "gradient") != (server.update_kind == "gradient"):
        raise ConfigError(f"this server takes updates of kind {server.update_kind!r}, got one of kind {kind!r}")
    elif kind == "difference":
        arrays, kind = task.from_difference(arrays), "delta"
    elif kind == "lora":
        shapes = {entry.name: entry.shape for entry in server.layout.entries}
        arrays, kind = lora.products(arrays, shapes, scale), "delta"
    elif kind == "model" and (control is not None or extra is not None):
        arrays, kind = task.delta(arrays), "delta"
    # A delta that comes alone is added as fast as a model.
    measures = kind == "gradient" or control is not None or extra is not None
    return Answer.to(task, arrays, samples, kind=kind, control=control, extra=extra, measures=measures)


def attempt(read: Callable[..., Answer], *reply: Any) -> Answer | FastaggError:
    """Return what ``read`` makes of a reply, or the error by which it refuses it."""
    try:
        return read(*reply)
    except FastaggError as error:
        return error


def judged(outcome: Outcome) -> Outcome:
    """Return what the server says of an adapter's own task. That it does not have it any more is an event."""
    if isinstance(outcome, Receipt):
        return outcome
    if isinstance(outcome, MemoryError):
        raise outcome
    gone = isinstance(outcome, (UnknownClient, UnknownVersion)) and not isinstance(outcome, AlreadyCounted)
    return LateReply(f"its task is over: {outcome}") if gone else stripped(outcome)


def stripped(error: FastaggError) -> FastaggError:
    """Return ``error`` without the frames that it went through: they hold the reply's arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
