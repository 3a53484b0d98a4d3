"""A Flower strategy for asynchronous training, which has no rounds. A free node gets the current model without waiting
for other nodes' replies.

Flower's ServerApp calls the strategy from one thread. An update counts at most once, even if the server restarts.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fastagg._types import Arrays, Foreign
from fastagg.errors import ConfigError, RunFailed
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.nodes import ClientEvaluation, NodeChooser, Nodes
from fastagg.integrations.flower.records import history, read, restore, write_model
from fastagg.integrations.flower.settings import Maker, callable_or_none, run_of, split
from fastagg.integrations.flower.tasks import Evaluate, log
from fastagg.integrations.replies import ClientFailure, attempt
from fastagg.integrations.run import check_limits
from fastagg.integrations.session import Book, Session
from fastagg.server.dispatch import Receipt
from fastagg.server.server import Server

_IGNORED = {
    "fraction_train": "there are no rounds to sample nodes for; concurrency says how many train at a time",
    "min_train_nodes": "there are no rounds to sample nodes for; min_available_nodes says how many must be online",
}
_NEVER = "clients do not evaluate; give evaluate_clients_every, the versions between two evaluations"
_OF_EVALUATION = ("min_evaluate_nodes", "evaluate_metrics_aggr_fn")
_NO_ROUNDS = (
    "AsyncStrategy has no rounds, so that a wrapper or a subclass that works round by round would do nothing, or "
    "train synchronously. Wrap SyncStrategy; here there are choose=, on_version=, clip_norm= of the server, and mods"
)


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        """Raise ConfigError, because this strategy has no rounds."""
        raise ConfigError(f"{name}: {_NO_ROUNDS}")

    return refuse


_ROUNDS = {
    name: _refusal(name) for name in ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
}


class AsyncStrategy(FedAvg):
    """Any asynchronous rule of fastagg as a Flower strategy.

    Args:
        server: a Server, or a preset (``fastagg.FADAS``, ``FedBuff``, ``ACE``, ``AsyncFedED``, ...) with its settings
            bound by :func:`functools.partial`. A preset makes the server from ``initial_arrays``.
        concurrency: the most nodes that train at the same time. None: all nodes that are online.
        choose: ``choose(free, version)`` gets the free nodes, the longest waiting node first. The function returns the
            nodes that get the version, in order, until ``concurrency`` is reached. None: ``free`` in its own order.
        evaluate_clients_every: the number of versions between two evaluations by clients. Each time
            ``fraction_evaluate`` of the online nodes evaluate, and at least ``min_evaluate_nodes`` (1), while training
            continues. Version ``num_rounds`` is evaluated, too. None: clients do not evaluate.
        checkpoint: a file for the server's state, the history and the nodes' client ids. If the file exists, the run
            continues from the file, and nodes get a new task in place of a task that was open.
        checkpoint_every: versions between two checkpoints.
        settings: settings of :class:`fastagg.integrations.goals.Settings`, and of ``flwr.serverapp.strategy.FedAvg``.
            While fewer than ``min_available_nodes`` (default: 1) nodes are online, no node gets a task.

    Attributes:
        server: the Server. None before the start, unless the user passed a Server.
        session: the state of the run: ``session.summary()``, ``session.tally``. None before the start.

    Raises:
        ConfigError: a setting is out of range, unknown or would have no effect, or the preset is synchronous.
    """

    def __init__(
        self,
        server: Maker | Server,
        *,
        concurrency: int | None = None,
        choose: NodeChooser | None = None,
        evaluate_clients_every: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1,
        **settings: Foreign,
    ) -> None:
        ignored = dict(_IGNORED)
        if evaluate_clients_every is None:
            ignored |= dict.fromkeys(_OF_EVALUATION, _NEVER)
            if settings.get("fraction_evaluate", 0.0) != 0.0:
                ignored["fraction_evaluate"] = _NEVER
        run, flower = split(settings, ignored, AsyncStrategy)
        super().__init__(**{"min_available_nodes": 1, "min_evaluate_nodes": 1, **flower})
        limits = {"concurrency": concurrency, "evaluate_clients_every": evaluate_clients_every}
        check_limits(**limits, checkpoint_every=checkpoint_every)
        self.concurrency, self.evaluate_clients_every = concurrency, evaluate_clients_every
        self.choose = callable_or_none("choose", choose)
        self.run = run_of(server, run, checkpoint, checkpoint_every, rounds=False)
        self.server: Server | None = server if isinstance(server, Server) else None
        self.session: Session | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train until the server has version ``num_rounds``, or until a goal of the settings ends the run.

        Args:
            grid, initial_arrays: as in Flower.
            train_config: as in Flower. The task's config has in addition ``server-round``, which is the version plus 1.
            num_rounds: the version at which the run ends. Versions before a restart count, too. None: only the setting
                ``stop``, which is then needed, ends the run.
            timeout: seconds that a node has for one task or one evaluation.
            evaluate_config: as in Flower, for the evaluations of ``evaluate_clients_every``.
            evaluate_fn: ``evaluate_fn(version, arrays)``, as in Flower. With ``evaluate_aside``, the default, the
                function runs in a thread while replies are received. If the function raises ``StopIteration``, which
                may hold a MetricRecord, the run ends without an error.

        Returns:
            Flower's Result, with metrics by version. ``result.arrays`` is the last version's model, not the best one.

        Raises:
            CheckpointError: ``checkpoint`` belongs to another model or algorithm, is damaged, or cannot be written.
            ConfigError: there is no limit, an argument would have no effect, or the Server is synchronous.
            RunFailed: the run cannot continue (:class:`fastagg.integrations.goals.Settings`).
        """
        if num_rounds is None and self.run.settings.stop is None:
            raise ConfigError("num_rounds: expected a limit, here or in stop=, got None for both")
        if evaluate_config is not None and self.evaluate_clients_every is None:
            raise ConfigError(f"evaluate_config: {_NEVER}")
        for name, refuse in _ROUNDS.items():
            if getattr(type(self), name) is not refuse or name in vars(self):
                refuse()
        check_limits(num_rounds=num_rounds, timeout=timeout)
        configs = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        run = _Training(self, grid, timeout, num_rounds, read(initial_arrays), *configs, evaluate_fn)
        try:
            run.session.stepped()
            run.settle()
            while not run.done():
                happened = [run.send(), run.receive(), run.expire(), run.settle()]
                if not any(happened):
                    time.sleep(tasks.POLL)
            return run.finish()
        except RunFailed:
            run.save()  # keeps the progress so far
            raise
        finally:
            run.session.close()

    def summary(self) -> None:
        """Log the settings and, after the start, the progress."""
        concurrency = self.concurrency or "all online"
        log.info("fastagg: %s of %s, concurrency %s", type(self).__name__, self.run.rule.name, concurrency)
        if self.session is not None:
            for line in self.session.summary().splitlines():
                log.info("fastagg: %s", line)

    configure_train, aggregate_train, configure_evaluate, aggregate_evaluate = _ROUNDS.values()


class _Training:
    """One call of :meth:`AsyncStrategy.start`, with its server, session and open tasks."""

    def __init__(
        self, strategy: AsyncStrategy, grid: Grid, timeout: float, num_rounds: int | None,
        initial: Arrays, config: ConfigRecord, evaluate_config: ConfigRecord, evaluate: Evaluate | None,
    ) -> None:  # fmt: skip
        self.strategy, self.grid, self.timeout = strategy, grid, timeout
        self.versions = math.inf if num_rounds is None else num_rounds
        self.config, self.online, self.result = config, list[int](), Result()
        self.since: list[RecordDict] = []  # the replies, without arrays, of the updates since the last version
        function = evaluate and (lambda version, model: evaluate(version, write_model(model)))
        kinds = ["train"] + ["clients"] * (strategy.evaluate_clients_every is not None)
        self.run = run = strategy.run
        kept = run.begin(initial, function, kinds, clock=time.monotonic)
        self.server, self.session = strategy.server, strategy.session = run.server, run.session
        self.nodes = Nodes(self.server.num_clients, strategy.choose, kept.get("nodes", {}))
        self.book = self.session.book = Book[str, int](self.server, time.monotonic)  # the keys are message ids
        self.session.noun = "node"
        self.evaluation = ClientEvaluation(strategy, grid, evaluate_config, timeout, self._evaluated)
        # Versions whose evaluation by clients had not ended when the checkpoint was saved.
        self.unevaluated: list[int] = kept.get("unevaluated", [])
        restore(self.result, kept)
        if self.server.version in self.result.evaluate_metrics_serverapp:
            self.session.evaluation.skip(self.server.version)
        run.is_finished("num_rounds", num_rounds, self.server.version)
        self.version = self.server.version
        strategy.summary()

    def done(self) -> bool:
        return self.server.version >= self.versions or self.session.over is not None

    # -- sending tasks -------------------------------------------------------------------------------------------

    def send(self) -> bool:
        """Send the current model to free nodes. Return whether a node was chosen, even if no message could be sent."""
        self.online = online = list(self.grid.get_node_ids())
        busy = self.book.busy
        self.session.failures.check(online)
        least = self.strategy.min_available_nodes
        self.session.lacks = f"nodes: {len(online)} of min_available_nodes={least} are online"
        if len(online) < max(1, least):
            return False
        self.session.lacks = ""
        if self.unevaluated:
            log.info("fastagg: clients evaluate this version again, for %s before the restart", self.unevaluated)
            self.unevaluated.clear()
            self._ask_clients()
        room = (self.strategy.concurrency or len(online)) - len(busy)
        idle = [node for node in set(online) - busy if not self.session.failures.rests(node)]
        assignments = self.nodes.free(idle, busy | set(online), room, self.server.version)
        if not assignments:
            return False
        messages, sent_tasks = [], []
        arrays = write_model(self.server.parameters())
        keys = (self.strategy.arrayrecord_key, self.strategy.configrecord_key)
        for node, client in assignments:
            task = self.server.dispatch(client)
            stated = {**self.config, "server-round": task.version + 1}
            records = tasks.content(task, arrays, stated, keys)
            messages.append(Message(records, node, MessageType.TRAIN, ttl=self.timeout, group_id=str(task.version)))
            sent_tasks.append((node, task))
        pushed = list(self.grid.push_messages(messages))
        for message_id, (node, task) in zip(pushed, sent_tasks, strict=True):
            self.book.put(message_id, node, task, self.timeout)
            if not message_id:
                self._give_up(message_id, "the message could not be sent")
        return bool(pushed)

    # -- receiving replies ---------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Take the replies that have arrived, until the run is done. Return whether a reply had arrived."""
        has_replies = False
        for batch in tasks.pull(self.grid, [*self.book.keys_of(), *self.evaluation.waiting], self.server):
            has_replies = True
            while batch and not self.done():
                self._take(batch.pop(0))
            if self.done():
                break
        return has_replies

    def _take(self, message: Message) -> None:
        if self.evaluation.take(message):
            return
        node = message.metadata.src_node_id
        task = self.book.pop(message.metadata.reply_to_message_id)
        if task is None:
            log.warning("fastagg: dropped a reply of node %d: answered before, or given up", node)
            return
        answer = attempt(tasks.answer, self.server, task.task, message, self.strategy.weighted_by_key)
        rows = tasks.of_kind(message.content, MetricRecord).values() if message.has_content() else ()
        [outcome] = self.session.take([(task, answer, {name: row[name] for row in rows for name in row})])
        if isinstance(outcome, Receipt):
            self.since.append(tasks.noted(message.content, node, outcome))
            if outcome.version != self.version:
                self._stepped()

    def expire(self) -> bool:
        """End the tasks and the evaluations whose deadline is over. Return whether a task was ended."""
        self.evaluation.expire()
        late = self.book.late()
        for message_id in late:
            self._give_up(message_id, f"no answer in {self.timeout:g} s")
        return bool(late)

    def _give_up(self, message_id: str, reason: str) -> None:
        for task in self.book.end([message_id]):
            self.session.refused(task.holder, ClientFailure(reason))

    def _stepped(self) -> None:
        version, strategy = self.server.version, self.strategy
        self.version = version
        metrics = tasks.averaged(strategy.train_metrics_aggr_fn, self.since, strategy.weighted_by_key)
        self.since.clear()
        if metrics is not None:
            self.result.train_metrics_clientapp[version] = metrics
        self.session.stepped(metrics)
        self.settle()
        every = strategy.evaluate_clients_every
        if every is not None and version % every == 0:
            self._ask_clients()
        if self.run.is_due:
            self.save()

    def settle(self, wait: bool = False) -> bool:
        """Report the versions whose metrics are complete, and store the evaluations' results. Return whether there was
        such a version. ``wait``: whether to wait first until all evaluations on the server have ended."""
        rows = self.session.settle(wait)
        for row in rows:
            if row.result is not None:
                self.result.evaluate_metrics_serverapp[row.version] = MetricRecord(dict(row.result))
        return bool(rows)

    def _ask_clients(self) -> None:
        if self.server.version in self.result.evaluate_metrics_clientapp:
            return
        best = self.run.settings.best
        keeps = best is not None and best.metric.startswith("clients/")
        model = self.server.parameters() if keeps else None
        self.evaluation.ask(self.server.version, write_model(self.server.parameters()), self.online, model)

    def _evaluated(self, version: int, metrics: MetricRecord, model: Arrays) -> None:
        self.result.evaluate_metrics_clientapp[version] = metrics
        self.session.evaluated(version, metrics, model)

    # -- the end, and checkpoints --------------------------------------------------------------------------------

    def finish(self) -> Result:
        """End the open tasks, whose replies do not count, wait for all evaluations, and return Flower's Result."""
        if out := self.book.end():
            log.info("fastagg: %d tasks were still out; their answers will not count", len(out))
        if self.session.over is None:
            self.session.stepped(last=True)
            if self.strategy.evaluate_clients_every is not None:
                self._ask_clients()
        self.settle(wait=True)
        while self.evaluation.waiting:
            for batch in tasks.pull(self.grid, self.evaluation.waiting, self.server):
                for message in batch:
                    self.evaluation.take(message)
            self.evaluation.expire()
            if self.evaluation.waiting:
                time.sleep(tasks.POLL)
        self.strategy.summary()
        self.save()
        self.result.arrays = write_model(self.server.parameters())
        return self.result

    def save(self) -> None:
        unevaluated = [*self.evaluation.open, *self.unevaluated]
        self.run.save({"nodes": dict(self.nodes.clients), "unevaluated": unevaluated, **history(self.result)})
