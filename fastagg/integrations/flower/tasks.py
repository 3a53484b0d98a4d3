"""Makes the messages of tasks, reads replies, and averages clients' metrics. Only the strategies call this module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.typeddict import TypedDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from torch import Tensor

from fastagg.errors import ConfigError, ShapeMismatch
from fastagg.integrations import replies
from fastagg.integrations.flower.records import formed, read, write
from fastagg.integrations.replies import ClientFailure
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server

log = logging.getLogger("flwr.fastagg")  # a child of Flower's logger, so its lines appear with Flower's

VERSION = "fastagg-version"  # a key in the ConfigRecord of a task. A reply may have this key in any ConfigRecord.
STEPS = "fastagg-local-steps"  # a key in a task's record, if the rule sets the number of local steps (AsyncFedED)
CONTROL = "control"  # the key of the ArrayRecord with FedAC's control variate, in tasks and replies
EXTRA = "extra"  # the key of the ArrayRecord with the further arrays that a user's own rule sends and takes
# The name of the ConfigRecord that is added to each reply before a function averages the metrics. The record holds the
# node's id, and for an update also the version and the delay of the receipt.
WHO = "fastagg"
_LATE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)  # Flower's errors after a message's ttl
POLL = 0.1  # seconds between two checks for replies
_AT_ONCE = 4  # the most replies that one `pull_messages` returns, and thus the most in memory at a time
_LARGE = 4_000_000  # for models of at least so many parameters, `pull_messages` returns one reply

# The user's evaluation on the server. It gets the number of a version or round, and the model.
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


class FreedReply(RecordDict):
    """A reply whose arrays were added to the sum and freed. Reading the arrays raises ConfigError."""

    def __init__(self, records: Mapping[str, ArrayRecord | ConfigRecord | MetricRecord]) -> None:
        super().__init__({key: record for key, record in records.items() if not isinstance(record, ArrayRecord)})
        self.__dict__["_freed"] = [key for key, record in records.items() if isinstance(record, ArrayRecord)]

    def __getitem__(self, key: str) -> ArrayRecord | ConfigRecord | MetricRecord:
        self._refuse(key in self.__dict__["_freed"])
        return super().__getitem__(key)

    @property
    def array_records(self) -> TypedDict[str, ArrayRecord]:
        """The ArrayRecords, as in Flower. Raises ConfigError if the reply had ArrayRecords, which were freed."""
        self._refuse(bool(self.__dict__["_freed"]))
        return super().array_records

    def _refuse(self, wanted: bool) -> None:
        if wanted:
            raise ConfigError(
                f"{self.__dict__['_freed']}: the arrays of this reply were added to the sum and freed. To read them, "
                "define aggregate_train and look at its replies before you call super().aggregate_train: all are then "
                "kept"
            )


def of_kind(records: Mapping[str, object], kind: type[Record]) -> dict[str, Record]:
    """Return the records of one kind. RecordDict's own properties, such as ``array_records``, make a cycle of
    references, so that only the garbage collector can free the arrays. This function makes no cycle."""
    return {key: record for key, record in records.items() if isinstance(record, kind)}


def content(task: Dispatch, arrays: ArrayRecord, stated: Mapping[str, object], keys: tuple[str, str]) -> RecordDict:
    """Return the content of a task's message: an ArrayRecord and a ConfigRecord, named by ``keys``. The ConfigRecord
    has ``stated``, the version, and for AsyncFedED the local steps. FedAC, and a user's own rule that sends arrays, add
    a second ArrayRecord."""
    record = ConfigRecord({**stated, VERSION: task.version})
    if task.local_steps is not None:
        record[STEPS] = task.local_steps
    records: dict[str, ArrayRecord | ConfigRecord] = {keys[0]: arrays, keys[1]: record}
    if task.extra:
        records[EXTRA] = write(task.extra)
    elif isinstance(task.control, Tensor):
        records[CONTROL] = write([task.control])
    return RecordDict(records)


def answer(server: Server, task: Dispatch, message: Message, samples: str, *, still: bool = True) -> Answer:
    """Read a node's reply as the answer to a task.

    Besides ``control`` and ``extra``, the reply must have one ArrayRecord: the trained model. ``fastagg-kind`` in a
    ConfigRecord of the reply may name another kind of :data:`fastagg.integrations.replies.KINDS`. A
    ``fastagg-version`` in the reply must be the task's version.

    Args:
        samples: the key of the client's number of samples in a MetricRecord.
        still: whether the reply's arrays do not change while they are added, as in :class:`fastagg.Answer`. If True,
            the arrays may be read twice, which saves the memory of a second sum.

    Raises:
        FastaggError: the reply does not fit. ClientFailure: the node sent an error.
    """
    if message.has_error():
        late = "; the node may need longer: raise timeout=" if message.error.code in _LATE else ""
        raise ClientFailure(f"error {message.error.code}: {message.error.reason}{late}")
    reply = message.content
    sent = of_kind(reply, ArrayRecord)
    control = next(iter(read(sent.pop(CONTROL, {})).values()), None)
    extra = read(sent.pop(EXTRA)) if EXTRA in sent else None
    if len(sent) != 1:
        raise ShapeMismatch(f"expected one ArrayRecord, got {sorted(sent)}")
    stated: dict[str, object] = {}
    for record in of_kind(reply, ConfigRecord).values():
        stated.update(record)
    counts = [metrics[samples] for metrics in of_kind(reply, MetricRecord).values() if samples in metrics]
    if not counts and server.weighting == "samples":
        raise ConfigError(f"the reply has no {samples!r} in a MetricRecord, by which this server weighs clients")
    arrays, count = formed(server, read(next(iter(sent.values())))), counts[0] if counts else None
    read_as = replies.answer(server, task, arrays, stated, samples=count, control=control, extra=extra)
    return read_as._replace(still=still)


def noted(reply: RecordDict, node: int, receipt: Receipt | None = None, *, frees: bool = True) -> RecordDict:
    """Return a copy of a reply for the function that averages metrics. The copy has a further ConfigRecord ``fastagg``
    with the ``node-id`` and, if there is a receipt, the receipt's ``version`` and ``delay``.

    Args:
        frees: whether the copy lacks the arrays, so that their memory can be freed.
    """
    label = ConfigRecord({"node-id": node})
    if receipt is not None:
        label["version"], label["delay"] = receipt.version, receipt.delay
    records = {**reply, WHO: label}
    return FreedReply(records) if frees else RecordDict(records)


def averaged(
    average: Callable[[list[RecordDict], str], MetricRecord], replies: list[RecordDict], samples: str
) -> MetricRecord | None:
    """Return the average of the clients' metrics, or None without replies. A user's own ``average`` is called as Flower
    calls it, and its errors end the run. Flower's default function is replaced by :func:`_means`."""
    if not replies:
        return None
    return _means(replies, samples) if average is aggregate_metricrecords else average(replies, samples)


def _means(replies: list[RecordDict], samples: str) -> MetricRecord | None:
    """Return each metric's mean over the clients that reported the metric, weighted by samples. If any metric has no
    mean (lists of several lengths), or no reply has samples, return None for all metrics and log the reason."""
    shares: dict[str, list[tuple[float, Any]]] = {}
    for reply in replies:
        for metrics in of_kind(reply, MetricRecord).values():
            share = metrics.get(samples, 0.0)
            if isinstance(share, (int, float)) and share > 0:
                for name in metrics.keys() - {samples}:
                    shares.setdefault(name, []).append((float(share), metrics[name]))
    try:
        if not shares:
            raise ValueError(f"no reply has metrics, and {samples!r} above 0")
        columns = {name: tuple(zip(*shares[name], strict=True)) for name in sorted(shares)}
        return MetricRecord({n: np.average(values, 0, weights).tolist() for n, (weights, values) in columns.items()})
    except (TypeError, ValueError) as error:
        log.warning("fastagg: the clients' metrics could not be averaged: %s: %s", type(error).__name__, error)
        return None


def pull(grid: Grid, message_ids: Iterable[str], server: Server) -> Iterator[list[Message]]:
    """Yield the replies to ``message_ids`` that have arrived, ``_AT_ONCE`` at most, or one for a large model."""
    ids, at_once = iter(list(message_ids)), 1 if server.layout.size >= _LARGE else _AT_ONCE
    while batch := list(islice(ids, at_once)):
        if messages := list(grid.pull_messages(batch)):
            yield messages
            del messages  # free these replies before the next ones are read
