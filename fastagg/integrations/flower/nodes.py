"""Chooses the nodes that train next, gives nodes their client ids, and lets nodes evaluate while others train.

Only :class:`AsyncStrategy` uses this module, from one thread. A version's metrics are reported at most once, when every
node that evaluates the version has answered or is late.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fastagg._types import Arrays
from fastagg.errors import ConfigError
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.tasks import VERSION, log

NodeChooser = Callable[[Sequence[int], int], Iterable[int]]


class Nodes:
    """Chooses nodes for tasks. By default the node that has waited longest is next.

    Args:
        num_clients: n, if the rule keeps data for each of n clients. Nodes then get the client ids 0..n-1 in order of
            appearance. When all ids are taken, a new node gets the id of a node that has left, or no task if no node
            has left. None: the client id is the node's id.
        choose: as in :class:`AsyncStrategy`.
        clients: client ids by node, from a checkpoint.
    """

    def __init__(self, num_clients: int | None, choose: NodeChooser | None, clients: Mapping[int, int]) -> None:
        self._choose, self.clients = choose, dict(clients)
        self._free = None if num_clients is None else sorted(set(range(num_clients)) - set(clients.values()))
        self._last: dict[int, int] = {}  # by node: the number of the last task that the node got
        self._given = 0  # the number of tasks so far
        self._unused: set[int] = set()  # nodes without a client id. The log has named these nodes.

    def free(self, idle: Iterable[int], present: Set[int], room: int, version: int) -> list[tuple[int, int]]:
        """Return up to ``room`` pairs of a node and its client id, for tasks with ``version``.

        Args:
            idle: nodes that may get a task.
            present: nodes that are online or have a task. The client ids of these nodes are not given to others.

        Raises:
            ConfigError: ``choose`` returned a node that is not free, or a node twice.
        """
        waiting = sorted(idle, key=lambda node: (self._last.get(node, -1), node))
        if room <= 0 or not waiting:
            return []
        if self._choose is not None:
            choice, known = list(self._choose(tuple(waiting), version)), set(waiting)
            if not known.issuperset(choice) or len(set(choice)) != len(choice):
                raise ConfigError(f"choose: expected some of the free nodes {waiting}, each once, got {choice}")
            waiting = choice
        pairs: list[tuple[int, int]] = []
        for node in waiting:
            if len(pairs) >= room:
                break
            client = self._number(node, present)
            if client is not None:
                pairs.append((node, client))
                self._given += 1
                self._last[node] = self._given
        return pairs

    def _number(self, node: int, present: Set[int]) -> int | None:
        if self._free is None or node in self.clients:
            return self.clients.get(node, node)
        if self._free:
            self.clients[node] = self._free.pop(0)
        elif gone := [known for known in self.clients if known not in present]:
            self.clients[node] = self.clients.pop(gone[0])
            log.info("fastagg: node %d is now client %d, which was node %d", node, self.clients[node], gone[0])
        elif node not in self._unused:
            self._unused.add(node)
            log.warning(
                "fastagg: node %d gets no task: the rule has num_clients=%d, and all are taken", node, len(self.clients)
            )
        return self.clients.get(node)


class ClientEvaluation:
    """Lets nodes evaluate versions, and averages the nodes' metrics.

    Args:
        strategy: provides ``fraction_evaluate``, ``min_evaluate_nodes`` and ``evaluate_metrics_aggr_fn``.
        config: the user's settings for the nodes.
        timeout: seconds that a node has for an evaluation.
        report: ``report(version, metrics, model)`` is called with the averaged metrics when all nodes have answered or
            are late. Without metrics the function is not called.

    Attributes:
        waiting: by message id: the node, the version that the node evaluates, and the deadline.
        open: by version: the model and the replies so far, for evaluations that have not ended.
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
        deadline = time.monotonic() + self._timeout
        sent = zip(self._grid.push_messages(messages), nodes, strict=True)
        requests = {message_id: (node, version, deadline) for message_id, node in sent if message_id}
        self.waiting |= requests
        self.open[version] = model, []
        log.info("fastagg: %d nodes evaluate version %d", len(requests), version)
        self._end(version)

    def take(self, message: Message) -> bool:
        """Take ``message`` if it is a reply for which an evaluation waits. Return whether it was taken."""
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
        for message_id, (node, version, deadline) in list(self.waiting.items()):
            if deadline < now:
                del self.waiting[message_id]
                log.warning("fastagg: node %d did not evaluate version %d", node, version)
                self._end(version)

    def _end(self, version: int) -> None:
        """End the evaluation of ``version`` and report its metrics, if no node is still to answer."""
        if any(waited == version for _, waited, _ in self.waiting.values()):
            return
        model, replies = self.open.pop(version)
        strategy = self._strategy
        metrics = tasks.averaged(strategy.evaluate_metrics_aggr_fn, replies, strategy.weighted_by_key)
        if metrics is not None:
            log.info("fastagg: version %d at %d nodes: %s", version, len(replies), dict(metrics))
            self._report(version, metrics, model)
