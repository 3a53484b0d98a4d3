"""Federated evaluation beside asynchronous training: some nodes evaluate a version while training continues."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fastagg._types import Arrays
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.tasks import VERSION, log


@dataclass
class _Version:
    """A version that is being evaluated."""

    model: Arrays
    waiting: dict[str, tuple[int, float]] = field(default_factory=dict)  # message id: node, until when
    found: list[RecordDict] = field(default_factory=list)


class ClientEvaluation:
    """Versions that nodes evaluate.

    Args:
        strategy: provides ``fraction_evaluate``, ``min_evaluate_nodes`` and ``evaluate_metrics_aggr_fn``.
        config: the user's settings for the nodes.
        timeout: seconds that a node has.
        report: called with a version, its averaged metrics and its model, when all nodes have answered or timed out.
    """

    def __init__(
        self,
        strategy: FedAvg,
        grid: Grid,
        config: ConfigRecord,
        timeout: float,
        report: Callable[[int, MetricRecord, Arrays], None],
    ) -> None:
        self._strategy, self._grid, self._config, self._timeout, self._report = strategy, grid, config, timeout, report
        self._versions: dict[int, _Version] = {}
        self._last = 0

    @property
    def waiting(self) -> list[str]:
        """Ids of the messages without a reply."""
        return [message_id for version in self._versions.values() for message_id in version.waiting]

    def ask(self, version: int, arrays: ArrayRecord, online: Sequence[int], model: Arrays) -> None:
        """Have nodes evaluate ``version``, once."""
        if version <= self._last or not online:
            return
        self._last = version
        strategy = self._strategy
        count = max(int(len(online) * strategy.fraction_evaluate), strategy.min_evaluate_nodes)
        nodes = random.sample(list(online), min(count, len(online)))
        config = ConfigRecord({**self._config, "server-round": version, VERSION: version})
        records = RecordDict({strategy.arrayrecord_key: arrays, strategy.configrecord_key: config})
        messages = [Message(records, node, MessageType.EVALUATE, ttl=self._timeout) for node in nodes]
        until, this = time.monotonic() + self._timeout, _Version(model)
        for message_id, node in zip(self._grid.push_messages(messages), nodes, strict=True):
            if message_id:
                this.waiting[message_id] = (node, until)
        self._versions[version] = this
        log.info("fastagg: %d nodes evaluate version %d", len(this.waiting), version)
        self._end(version)

    def take(self, message: Message) -> bool:
        """Take a reply. Return whether it belongs to one of these evaluations."""
        message_id = message.metadata.reply_to_message_id
        for version, one in self._versions.items():
            if message_id in one.waiting:
                node, _ = one.waiting.pop(message_id)
                if message.has_error():
                    log.warning("fastagg: node %d could not evaluate: %s", node, message.error.reason)
                else:
                    one.found.append(tasks.noted(message.content, node))
                self._end(version)
                return True
        return False

    def expire(self) -> None:
        """Stop waiting for nodes whose time is over."""
        now = time.monotonic()
        for version, one in list(self._versions.items()):
            late = [message_id for message_id, (_, until) in one.waiting.items() if until < now]
            for message_id in late:
                log.warning("fastagg: node %d did not evaluate version %d", one.waiting.pop(message_id)[0], version)
            if late:
                self._end(version)

    def _end(self, version: int) -> None:
        one = self._versions[version]
        if one.waiting:
            return
        del self._versions[version]
        strategy = self._strategy
        metrics = tasks.averaged(strategy.evaluate_metrics_aggr_fn, one.found, strategy.weighted_by_key)
        if metrics is not None:
            log.info("fastagg: version %d at %d nodes: %s", version, len(one.found), dict(metrics))
            self._report(version, metrics, one.model)
