"""Flower's history of a run, in the form of a checkpoint."""

from __future__ import annotations

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from fastagg._types import State

_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def kept(result: Result) -> State:
    """Plain data."""
    return {"history": {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in _HISTORY}}


def restore(result: Result, state: State) -> None:
    """Inverse of :func:`kept`."""
    for name, rows in state.get("history", {}).items():
        getattr(result, name).update({number: MetricRecord(row) for number, row in rows.items()})
