"""Asynchronous training in Flower: nodes get the current model as they become free, and no round waits for anybody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fastagg import _checks
from fastagg.errors import ConfigError
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.nodes import Nodes
from fastagg.integrations.flower.records import read
from fastagg.integrations.flower.tasks import log
from fastagg.parts.directions import Cohort
from fastagg.serving import checkpoint
from fastagg.serving.dispatch import Dispatch
from fastagg.serving.server import Server


@dataclass(frozen=True)
class _Sent:
    """A task on its way."""

    node: int
    task: Dispatch
    until: float


class AsyncStrategy(FedAvg):
    """Any asynchronous rule of fastagg as a Flower strategy.

    Args:
        server: a preset (``fastagg.FADAS``, ``FedBuff``, ``ACE``, ``AsyncFedED``, ...), with its settings bound by
            :func:`functools.partial`, which is started with ``initial_arrays``; or a Server.
        concurrency: nodes that train at the same time at most; None for all that are online.
        retry_after: seconds that a node which failed, or did not answer in time, is left alone.
        evaluate_every: versions between two calls of ``evaluate_fn``.
        checkpoint: file the server, the history and the nodes' numbers are saved to.
        checkpoint_every: versions between two savings.
        resume: go on from ``checkpoint`` if it is there. Tasks that were out when it was written are sent again.
        poll: seconds to sleep when nothing has come.
        flower: settings of ``flwr.serverapp.strategy.FedAvg``; its sampling and client-side evaluation are not used.

    Attributes:
        server: the Server, once started.
        updates: updates folded in so far, those before a resumption included.

    Raises:
        ConfigError: a setting is out of range, or the server is a synchronous one.
    """

    def __init__(
        self,
        server: tasks.Make | Server,
        *,
        concurrency: int | None = None,
        retry_after: float = 5.0,
        evaluate_every: int = 1,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1,
        resume: bool = True,
        poll: float = 0.1,
        **flower: Any,
    ) -> None:
        super().__init__(**flower)
        if concurrency is not None:
            _checks.whole("concurrency", concurrency, least=1)
        self.concurrency, self.retry_after = concurrency, _checks.number("retry_after", retry_after, least=0)
        self.poll = _checks.number("poll", poll, least=0)
        self.evaluate_every = _checks.whole("evaluate_every", evaluate_every, least=1)
        self.checkpoint_every = _checks.whole("checkpoint_every", checkpoint_every, least=1)
        self.checkpoint, self.resume = None if checkpoint is None else Path(checkpoint), resume
        self._make = server
        self.server: Server | None = server if isinstance(server, Server) else None
        self.updates = 0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        num_updates: int | None = None,
    ) -> Result:
        """Train until the model has stepped ``num_rounds`` times, or ``num_updates`` updates have been folded in.

        Args:
            grid, initial_arrays, train_config, evaluate_fn: as in Flower.
            num_rounds: versions; None for no limit.
            timeout: seconds a node has for one task.
            evaluate_config: not used.
            num_updates: updates; None for no limit.

        Returns:
            Flower's history, by version: metrics of the clients whose updates made it, and ``evaluate_fn``'s.

        Raises:
            CheckpointError: ``checkpoint`` is of another model or algorithm, damaged, or cannot be written.
            ConfigError: there is no limit.
        """
        if num_rounds is None and num_updates is None:
            raise ConfigError("num_rounds: expected a limit, here or in num_updates, got None for both")
        run = _Run(self, grid, train_config or ConfigRecord(), evaluate_fn, timeout, num_rounds, num_updates)
        self.server = run.begin(initial_arrays)
        while not run.done():
            happened = [run.send(), run.receive(), run.expire()]
            if not any(happened):
                time.sleep(self.poll)
        return run.finish()

    def summary(self) -> None:
        """Nothing: what would be said is not used."""


@dataclass
class _Run:
    """One call of :meth:`AsyncStrategy.start`."""

    strategy: AsyncStrategy
    grid: Grid
    config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    timeout: float
    num_rounds: int | None
    num_updates: int | None
    result: Result = field(default_factory=Result)
    sent: dict[str, _Sent] = field(default_factory=dict)  # by message id
    since: list[RecordDict] = field(default_factory=list)  # metrics of the updates since the last version

    def begin(self, initial: ArrayRecord) -> Server:
        """Make the server, or take it up where a checkpoint left it."""
        strategy = self.strategy
        if not isinstance(strategy._make, Server):
            strategy.updates = 0
        self.server = tasks.made(strategy._make, read(initial))
        if isinstance(self.server.direction, Cohort):
            raise ConfigError("server: a synchronous rule; SyncStrategy runs those")
        self.nodes = Nodes(self.server.num_clients)
        if strategy.checkpoint is not None and strategy.resume and strategy.checkpoint.exists():
            self._resume(strategy.checkpoint)
        self._arrays, self._of = tasks.model(self.server), self.server.version
        self._evaluate_once()
        return self.server

    def done(self) -> bool:
        """Whether a limit is reached."""
        rounds, updates = self.num_rounds, self.num_updates
        return (rounds is not None and self.server.version >= rounds) or (
            updates is not None and self.strategy.updates >= updates
        )

    # -- out -----------------------------------------------------------------------------------------------------

    def send(self) -> bool:
        """Give free nodes the current model; whether any was."""
        online = list(self.grid.get_node_ids())
        busy = {sent.node for sent in self.sent.values()}
        room = (self.strategy.concurrency or len(online)) - len(busy)
        chosen = self.nodes.free(online, busy, room, time.monotonic())
        messages, going = [], []
        keys = (self.strategy.arrayrecord_key, self.strategy.configrecord_key)
        for node, client in chosen:
            task = self.server.dispatch(client)
            config = ConfigRecord({**self.config, "server-round": task.version + 1})
            records = tasks.content(task, self.arrays(), config, keys)
            messages.append(Message(records, node, MessageType.TRAIN, ttl=self.timeout, group_id=str(task.version)))
            going.append(_Sent(node, task, time.monotonic() + self.timeout))
        pushed = list(self.grid.push_messages(messages)) if messages else []
        for message_id, sent in zip(pushed, going, strict=True):
            if message_id:
                self.sent[message_id] = sent
                log.debug("fastagg: version %d went to node %d", sent.task.version, sent.node)
            else:
                self._give_up(sent, "the message could not be sent")
        return bool(pushed)

    def arrays(self) -> ArrayRecord:
        """The current model as a record, made once a version."""
        if self._of != self.server.version:
            self._arrays, self._of = tasks.model(self.server), self.server.version
        return self._arrays

    # -- in ------------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Fold in what has come, up to the limits; whether anything had."""
        heard = False
        for batch in tasks.pull(self.grid, self.sent, self.server):
            heard = True
            while batch and not self.done():
                self._take(batch.pop(0))
            if self.done():
                break
        return heard

    def _take(self, message: Message) -> None:
        server = self.server
        sent = self.sent.pop(message.metadata.reply_to_message_id, None)
        if sent is None:
            node = message.metadata.src_node_id
            log.warning("fastagg: dropped a reply of node %d: answered before, or given up", node)
            return
        before = server.version
        [receipt] = tasks.take(server, [(sent.task, sent.node, message)], self.strategy.weighted_by_key)
        if receipt is None:
            self.nodes.rest(sent.node, time.monotonic() + self.strategy.retry_after)
            return
        self.strategy.updates += 1
        self.since.append(tasks.metrics_of(message.content))
        log.info(
            "fastagg: update %d: client %s, from version %d, delay %d, version %d",
            self.strategy.updates, receipt.client, sent.task.version, receipt.delay, receipt.version,
        )  # fmt: skip
        if server.version != before:
            self._stepped()

    def expire(self) -> bool:
        """Give up the tasks whose time is over; whether there were any."""
        now = time.monotonic()
        late = [message_id for message_id, sent in self.sent.items() if sent.until < now]
        for message_id in late:
            self._give_up(self.sent.pop(message_id), f"no answer in {self.timeout:g} s")
        return bool(late)

    def _give_up(self, sent: _Sent, why: str) -> None:
        log.warning("fastagg: gave up version %d at node %d: %s", sent.task.version, sent.node, why)
        self.server.forget(sent.task.client, sent.task.version)
        self.nodes.rest(sent.node, time.monotonic() + self.strategy.retry_after)

    def _stepped(self) -> None:
        version = self.server.version
        metrics = tasks.averaged(self.strategy.train_metrics_aggr_fn, self.since, self.strategy.weighted_by_key)
        self.since.clear()
        if metrics is not None:
            self.result.train_metrics_clientapp[version] = metrics
        if version % self.strategy.evaluate_every == 0:
            self._evaluate_once()
        if version % self.strategy.checkpoint_every == 0:
            self._save()

    def _evaluate_once(self) -> None:
        version, history = self.server.version, self.result.evaluate_metrics_serverapp
        if self.evaluate_fn is None or version in history:
            return
        found = self.evaluate_fn(version, self.arrays())
        if found is not None:
            log.info("fastagg: version %d: %s", version, dict(found))
            history[version] = found

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def finish(self) -> Result:
        """The history; tasks still out are given up and never counted."""
        self._evaluate_once()
        for sent in self.sent.values():
            self.server.forget(sent.task.client, sent.task.version)
        log.info("fastagg: version %d after %d updates", self.server.version, self.strategy.updates)
        if self.sent:
            log.info("fastagg: %d tasks were still out; their answers will not count", len(self.sent))
        self.sent.clear()
        self._save()
        self.result.arrays = self.arrays()
        return self.result

    def _save(self) -> None:
        if self.strategy.checkpoint is None:
            return
        history = {
            name: {version: dict(record) for version, record in getattr(self.result, name).items()} for name in _HISTORY
        }
        state = {"updates": self.strategy.updates, "nodes": self.nodes.state_dict(), "history": history}
        checkpoint.write({**self.server.state_dict(copy=False), "flower": state}, self.strategy.checkpoint)

    def _resume(self, path: Path) -> None:
        state = checkpoint.read(path)
        self.server.load_state_dict(state)
        out = checkpoint.open_tasks(state)
        for client, version in out:
            self.server.forget(client, version)
        kept = state.get("flower", {})  # not there in a file of Server.save
        self.strategy.updates = kept.get("updates", 0)
        self.nodes.load_state_dict(kept.get("nodes", {}))
        for name, records in kept.get("history", {}).items():
            getattr(self.result, name).update({version: MetricRecord(record) for version, record in records.items()})
        log.info(
            "fastagg: resumed version %d after %d updates; %d tasks that were out are sent again",
            self.server.version, self.strategy.updates, len(out),
        )  # fmt: skip


_HISTORY = ("train_metrics_clientapp", "evaluate_metrics_serverapp")
