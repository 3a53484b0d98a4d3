"""What every strategy here does with one reply: check it, fold it into the server, say what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fastagg.errors import ConfigError, FastaggError, ShapeMismatch, UnknownVersion
from fastagg.integrations.flower.records import read, write
from fastagg.parts.names import Kind
from fastagg.serving.dispatch import Dispatch, Receipt
from fastagg.serving.server import Answer, Outcome, Server

log = logging.getLogger("flwr.fastagg")  # under Flower's own logger: shown where its lines are

NOTE = "fastagg"  # the ConfigRecord that travels with every model and may be sent back with the answer
CONTROL = "control"  # the ArrayRecord of FedAC's control variate, there and back
_AT_ONCE = 4  # replies asked for in one call: no more of them are ever in memory,
_LARGE = 4_000_000  # and one alone of a model of so many parameters, beside which a call costs nothing

# Clients in a synchronous round are Flower's to choose: it ends with its replies, never because it is full.
OPEN = 2**31 - 1

Make = Callable[..., Server]
Arrived = tuple[Dispatch, int, Message]  # a task, the node that had it, its answer


def made(make: Make | Server, model: Any, **settings: Any) -> Server:
    """The server that ``make``, a preset or a :func:`functools.partial` of one, builds for a model.

    Raises:
        ConfigError: it is neither, or lacks a setting.
    """
    if isinstance(make, Server):
        return make
    try:
        server = make(model, **settings)
    except TypeError as error:
        raise ConfigError(f"server: expected a fastagg preset with its settings (functools.partial): {error}") from None
    if not isinstance(server, Server):
        raise ConfigError(f"server: expected a fastagg.Server or a preset, got {type(server).__name__}")
    return server


def model(server: Server) -> ArrayRecord:
    """The server's model as it goes out, every array in the dtype it came in."""
    arrays = server.parameters()
    return write([arrays] if isinstance(arrays, Tensor) else arrays)


def note(task: Dispatch) -> ConfigRecord:
    """What a client is told beside the model."""
    record = ConfigRecord({"version": task.version})
    if task.local_steps is not None:
        record["local-steps"] = task.local_steps
    return record


def content(task: Dispatch, arrays: ArrayRecord, config: ConfigRecord, keys: tuple[str, str]) -> RecordDict:
    """A task as a client gets it: model, the user's own settings, and fastagg's note."""
    records: dict[str, Any] = {keys[0]: arrays, keys[1]: config, NOTE: note(task)}
    if task.control is not None:
        records[CONTROL] = write([task.control])
    return RecordDict(records)


def take(server: Server, arrived: Sequence[Arrived], samples: str) -> list[Receipt | None]:
    """Fold nodes' answers to their tasks into the server, as many as there are in one pass over memory.

    Each holds one ArrayRecord: the trained model, or what the reply's own note calls ``kind``: ``delta``, ``gradient``.
    A note that was sent back must name the version that was sent.

    Args:
        samples: key, in a MetricRecord, of the client's number of samples.

    Returns:
        For each its receipt; None for a task that is given up, and the log says why.
    """
    outcomes: list[Outcome | None] = [None] * len(arrived)
    models: dict[int, Answer] = {}
    for i, (task, node, message) in enumerate(arrived):
        if message.has_error():
            log.warning("fastagg: node %d failed: error %d: %s", node, message.error.code, message.error.reason)
            continue
        try:
            arrays, kind, count, control = _unpacked(server, task, message.content, samples)
            if kind == "model" and control is None:
                models[i] = (task, arrays, count)
                continue
            update, kind = (task.delta(arrays), "delta") if kind == "model" else (arrays, kind)
            outcomes[i] = server.receive(
                task.client, update, task.version, count, kind=cast(Kind, kind), control=control
            )
        except FastaggError as error:
            outcomes[i] = error
    for i, outcome in zip(models, server.receive_models(list(models.values())), strict=True):
        outcomes[i] = outcome
    return [_told(server, delivery, outcome) for delivery, outcome in zip(arrived, outcomes, strict=True)]


def _unpacked(server: Server, task: Dispatch, reply: RecordDict, samples: str) -> tuple[Any, str, Any, Tensor | None]:
    """A reply's arrays in the server's form, their kind, the number of samples, FedAC's control variate."""
    told = reply.config_records.get(NOTE, {})
    version, kind = told.get("version", task.version), told.get("kind", "model")
    if version != task.version:
        raise UnknownVersion(f"it is from version {version}, its task was version {task.version}")
    sent = {key: record for key, record in reply.array_records.items() if key != CONTROL}
    if len(sent) != 1:
        raise ShapeMismatch(f"expected one ArrayRecord, got {sorted(sent)}")
    named = read(next(iter(sent.values())))
    form = server.layout.form
    arrays: Any = named if form in ("module", "state_dict") else list(named.values())
    if form == "flat":
        arrays = arrays[0] if len(arrays) == 1 else arrays
    counts = [metrics[samples] for metrics in reply.metric_records.values() if samples in metrics]
    control = next(iter(read(reply.array_records.get(CONTROL, {})).values()), None)
    return arrays, str(kind), counts[0] if counts else None, control


def _told(server: Server, arrived: Arrived, outcome: Outcome | None) -> Receipt | None:
    if isinstance(outcome, Receipt):
        return outcome
    task, node, _ = arrived
    if outcome is not None:
        log.warning("fastagg: dropped the reply of node %d: %s: %s", node, type(outcome).__name__, outcome)
    server.forget(task.client, task.version)
    return None


def metrics_of(reply: RecordDict) -> RecordDict:
    """A reply without its arrays, which need not stay."""
    return RecordDict(dict(reply.metric_records))


def averaged(
    average: Callable[[list[RecordDict], str], MetricRecord], replies: list[RecordDict], samples: str
) -> MetricRecord | None:
    """Flower's average of the clients' metrics; None, and a line in the log, where it cannot be had."""
    try:
        return average(replies, samples) if replies else None
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        log.warning("fastagg: the clients' metrics could not be averaged: %s: %s", type(error).__name__, error)
        return None


def pull(grid: Any, message_ids: Iterable[str], server: Server) -> Iterator[list[Message]]:
    """The replies that are there, few at a time."""
    left, at_once = iter(list(message_ids)), 1 if server.layout.size >= _LARGE else _AT_ONCE
    while some := list(islice(left, at_once)):
        if there := list(grid.pull_messages(some)):
            yield there
            del there  # before more are read
