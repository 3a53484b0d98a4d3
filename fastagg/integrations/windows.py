"""Collects the metrics of clients that evaluate the models that they are sent."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fastagg.integrations.trackers import numeric
from fastagg.server.dispatch import Dispatch


class Window:
    """Collects as many replies as there are clients, so that no single client's data decides the mean.

    A client evaluates the model that it is sent and returns the metrics with its update. In a synchronous round all
    clients evaluate the same model. Here they evaluate several versions. The mean is assigned to the newest of these.

    Attributes:
        task: the newest task among the replies, which has its model.
    """

    def __init__(self) -> None:
        self.task: Dispatch | None = None
        self._count = 0
        self._rows: list[dict[str, float]] = []

    def add(self, task: Dispatch, metrics: Mapping[str, object] | None) -> None:
        """Add a reply. Metrics that are not finite numbers are left out."""
        self._count += 1
        if self.task is None or task.version > self.task.version:
            self.task = task
        found = {name: value for name, value in numeric(metrics or {}).items() if math.isfinite(value)}
        if found:
            self._rows.append(found)

    def full(self, clients: int) -> bool:
        """Whether there are as many replies as ``clients``."""
        return self._count >= max(1, clients)

    def means(self) -> dict[str, float]:
        """The mean of each metric over the replies that have it."""
        names = dict.fromkeys(name for row in self._rows for name in row)
        values = {name: [row[name] for row in self._rows if name in row] for name in names}
        return {name: math.fsum(found) / len(found) for name, found in values.items()}
