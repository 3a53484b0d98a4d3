"""Reads a client's reply in any framework as the answer to a task. Only adapters call this module.

Reading does not change the server. A reply that does not fit its task raises a named error.
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
    """A reply came after the server had ended its task (``lease``, ``max_delay``). The client has not failed."""


class ClientFailure(FastaggError):
    """A client sent no reply in time, or the client or the framework reported an error in place of a reply."""


KINDS = ("model", "difference", "delta", "gradient", "lora", "encoded")


def answer(
    server: Server, task: Dispatch, arrays: Arrays, stated: Mapping[str, object], *, kind: str = "model",
    prefix: str = "fastagg-", samples: float | None = None, control: Any = None, extra: Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """Return a reply as the answer to its task.

    Args:
        arrays: the arrays that the client sent, in the form of the server's model.
        stated: the reply's config record or meta dict. Three keys are read: ``<prefix>kind``, ``<prefix>version`` (the
            version from which the client trained) and ``<prefix>scale`` (``lora_alpha / rank``, for ``lora``).
        kind: the kind of the reply if ``stated`` has none. ``model``: the trained model. ``difference``: the trained
            minus the sent model, for every array, including BatchNorm's statistics. ``delta``: as for
            ``Server.receive``, the difference of parameters, and the trained model's statistics. ``gradient``: for ACE,
            ACED, ASGD. ``lora``: adapters whose products are the delta (:mod:`fastagg.lora`). ``encoded``: the arrays
            of a :class:`fastagg.Encoded` update, which is a gradient if the rule takes gradients, otherwise a delta.
        samples: the client's number of samples. None: the reply does not state the number.
        control: FedAC's change of the control variate, flat [d]. None: the reply has no such change.
        extra: the further arrays that a user's own rule takes, by name. None: the reply has none.

    Raises:
        ConfigError: the kind is not in :data:`KINDS` or not the server's, the version is not an integer, or the scale
            is not a number. UnknownVersion: the stated version is not the task's.
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
    # The norm of a delta without further arrays is not measured, so the delta is added as fast as a model.
    measures = kind == "gradient" or control is not None or extra is not None
    return Answer.to(task, arrays, samples, kind=kind, control=control, extra=extra, measures=measures)


def attempt(read: Callable[..., Answer], *reply: Any) -> Answer | FastaggError:
    """Return the answer ``read(*reply)``, or the error of fastagg that ``read`` raised."""
    try:
        return read(*reply)
    except FastaggError as error:
        return error


def judged(outcome: Outcome) -> Outcome:
    """Return the outcome of an answer for an adapter: the receipt, LateReply if the server had ended the task, or the
    error. If the outcome is a MemoryError, raise it."""
    if isinstance(outcome, Receipt):
        return outcome
    if isinstance(outcome, MemoryError):
        raise outcome
    gone = isinstance(outcome, (UnknownClient, UnknownVersion)) and not isinstance(outcome, AlreadyCounted)
    return LateReply(f"its task is over: {outcome}") if gone else stripped(outcome)


def stripped(error: FastaggError) -> FastaggError:
    """Return ``error`` without its traceback, because the traceback's frames hold the reply's arrays."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
