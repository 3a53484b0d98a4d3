"""Federated evaluation beside asynchronous training: some nodes evaluate a version while training continues.

:class:`AsyncStrategy` alone calls it. A version is reported once, when all its nodes
have answered or are late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fastagg._types import Arrays
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.tasks import VERSION, log


class ClientEvaluation:
    """Versions that nodes evaluate.

    Args:
        strategy: provides ``fraction_evaluate``, ``min_evaluate_nodes`` and ``evaluate_metrics_aggr_fn``.
        config: the user's settings for the nodes.
        timeout: seconds that a node has.
        report: called with a version, its averaged metrics and its model, when all nodes have answered or timed out.

    Attributes:
        waiting: by message id, who evaluates which version, and until when.
        open: the versions that are evaluated, each with its model and its replies.
    """

    def __init__(
        self, strategy: FedAvg, grid: Grid, config: ConfigRecord, timeout: float,
        report: Callable[[int, MetricRecord, Arrays], None],
    ) -> None:  # fmt: skip
        self._strategy, self._grid, self._config, self._timeout, self._report = strategy, grid, config, timeout, report
        self.waiting: dict[str, tuple[int, int, float]] = {}
        self.open: dict[int, tuple[Arrays, list[RecordDict]]] = {}
        self._last = 0

    def ask(self, version: int, arrays: ArrayRecord, online: Sequence[int], model: Arrays) -> None:
        if version <= self._last or not online:
            return
        self._last = version
        strategy = self._strategy
        count = max(int(len(online) * strategy.fraction_evaluate), strategy.min_evaluate_nodes)
        nodes = random.sample(list(online), min(count, len(online)))
        config = ConfigRecord({**self._config, "server-round": version, VERSION: version})
        records = RecordDict({strategy.arrayrecord_key: arrays, strategy.configrecord_key: config})
        messages = [Message(records, node, MessageType.EVALUATE, ttl=self._timeout) for node in nodes]
        until = time.monotonic() + self._timeout
        sent = zip(self._grid.push_messages(messages), nodes, strict=True)
        asked = {message_id: (node, version, until) for message_id, node in sent if message_id}
        self.waiting |= asked
        self.open[version] = model, []
        log.info("fastagg: %d nodes evaluate version %d", len(asked), version)
        self._end(version)

    def take(self, message: Message) -> bool:
        """Take a reply. Return whether it belongs to one of these evaluations."""
        node, version, _ = self.waiting.pop(message.metadata.reply_to_message_id, (0, None, 0.0))
        if version is None:
            return False
        if message.has_error():
            log.warning("fastagg: node %d could not evaluate: %s", node, message.error.reason)
        else:
            self.open[version][1].append(tasks.noted(message.content, node))
        self._end(version)
        return True

    def expire(self) -> None:
        now = time.monotonic()
        for message_id, (node, version, until) in list(self.waiting.items()):
            if until < now:
                del self.waiting[message_id]
                log.warning("fastagg: node %d did not evaluate version %d", node, version)
                self._end(version)

    def _end(self, version: int) -> None:
        """Report a version for which nobody is waited any more."""
        if any(waited == version for _, waited, _ in self.waiting.values()):
            return
        model, replies = self.open.pop(version)
        strategy = self._strategy
        metrics = tasks.averaged(strategy.evaluate_metrics_aggr_fn, replies, strategy.weighted_by_key)
        if metrics is not None:
            log.info("fastagg: version %d at %d nodes: %s", version, len(replies), dict(metrics))
            self._report(version, metrics, model)
