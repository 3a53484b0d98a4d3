"""Flower's history of a run, in the form of a checkpoint."""

from __future__ import annotations

from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def kept(result: Result) -> dict[str, Any]:
    """Plain data."""
    return {"history": {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in _HISTORY}}


def restore(result: Result, state: dict[str, Any]) -> None:
    """Inverse of :func:`kept`."""
    for name, rows in state.get("history", {}).items():
        getattr(result, name).update({number: MetricRecord(row) for number, row in rows.items()})
