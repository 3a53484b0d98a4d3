"""A server's model as Flower's records, and Flower's history in the form of a checkpoint. For the strategies."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from torch import Tensor

from fastagg._types import Arrays, State
from fastagg.integrations.flower.records import write
from fastagg.integrations.models import holds as holds
from fastagg.integrations.models import put as put
from fastagg.server.server import Server


def record(model: Arrays) -> ArrayRecord:
    """A model in the form of ``server.parameters()``, with every array in its original dtype."""
    return write([model] if isinstance(model, Tensor) else model)


def outgoing(server: Server) -> ArrayRecord:
    return record(server.parameters())


def formed(server: Server, arrays: Arrays) -> Arrays:
    """Return arrays by name, as records have them, in the form of the server's model. A list stays a list."""
    form = server.layout.form
    if form in ("module", "state_dict") or not isinstance(arrays, Mapping):
        return arrays
    arrays = list(arrays.values())
    return arrays[0] if form == "flat" and len(arrays) == 1 else arrays


_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def history(result: Result) -> State:
    return {"history": {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in _HISTORY}}


def restore(result: Result, state: State) -> None:
    for name, rows in state.get("history", {}).items():
        getattr(result, name).update({number: MetricRecord(row) for number, row in rows.items()})
