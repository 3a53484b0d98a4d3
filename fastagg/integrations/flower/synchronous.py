"""A Flower strategy for synchronous rounds. Flower's ServerApp, or a wrapper, calls the strategy from one thread.

A reply is added to the sum when the strategy reads it. The checkpoint is written after each step, before the
evaluation, and again after it if :meth:`SyncStrategy.start` runs the rounds.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fastagg import _checks
from fastagg._types import Arrays, Foreign, State
from fastagg.errors import ConfigError
from fastagg.integrations.evaluation import ended
from fastagg.integrations.flower import tasks
from fastagg.integrations.flower.records import history, read, restore, write_model
from fastagg.integrations.flower.rounds import Gathering, Replies, Rounds, StreamedGrid
from fastagg.integrations.flower.settings import Maker, split
from fastagg.integrations.flower.tasks import Evaluate, log
from fastagg.integrations.replies import ClientFailure
from fastagg.integrations.run import check_limits
from fastagg.server.answers import Answer
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server

_IGNORED = {
    "max_failures": "Flower samples each round's nodes anew; max_in_a_row ends a run whose clients all fail",
    "retry_after": "Flower samples each round's nodes anew",
    "evaluate_aside": "a round ends with its evaluation, as in Flower",
}
_LARGE = 1_000_000  # for models of at least so many parameters, a garbage collection is short beside a round
_OF_START = ("stop", "best", "on_version", "trackers")  # settings that only start() handles


class SyncStrategy(Rounds[int], FedAvg):
    """Any synchronous rule of fastagg as a Flower strategy.

    Wrappers (such as Flower's differential privacy) and subclasses may change the model that the strategy returned. The
    strategy continues from the changed model and keeps the optimizer's moments.

    Args:
        server: a Server, or a preset (``fastagg.FedAvg``, ``FedAMS``, ``FedAdam``, ``FedYogi``, ...) with its settings
            bound by :func:`functools.partial`. A preset makes the server from ``initial_arrays``. The server weighs
            clients by ``weighted_by_key``, as Flower does, unless ``weighting`` is bound.
        lr: ``lr(round)`` returns the server's learning rate in round 1, 2, ... None: the server's own rate.
        deterministic: whether each round's replies are added in the order of node ids, so that results do not depend on
            the order of arrival. All replies of a round are then in memory at the same time.
        checkpoint: a file for the server's state and the history, written after every round. If the file exists, the
            run continues from the file. :func:`fastagg.load` reads the file, too.
        settings: ``stop``, ``best``, ``on_version``, ``trackers``, ``max_in_a_row``, ``max_seconds`` and
            ``evaluate_every`` of :class:`fastagg.integrations.goals.Settings`, and the settings of
            ``flwr.serverapp.strategy.FedAvg``.

    Raises:
        ConfigError: ``server`` is neither a preset nor a Server, the preset refuses its settings, or a setting is
            unknown or would have no effect.
    """

    _advice = "start from strategy.resumed(initial_arrays)"

    def __init__(
        self,
        server: Maker | Server,
        *,
        lr: Callable[[int], float] | None = None,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        **settings: Foreign,
    ) -> None:
        run, flower = split(settings, _IGNORED, SyncStrategy, max_failures=None)
        super().__init__(**flower)
        self._set_up(server, run, checkpoint, lr, deterministic)
        self._kinds = ["train", "clients", ""]  # see AdapterRun.begin. start() sets the kinds that the run has.
        self._sent: list[Metadata] = []  # the metadata of the round's messages
        self._streaming: StreamedGrid | None = None  # the grid of the round that start() runs
        self._rounds = 0  # the number of the current or last round
        self._result = Result()
        self._runs = False  # whether start() is running. False while a wrapper runs the rounds.

    # -- a run ---------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train as Flower does, but add each reply to the sum when it arrives, unless ``deterministic`` is set.

        The model of a checkpoint or of a Server replaces ``initial_arrays``. ``num_rounds`` includes the rounds before
        a restart. ``timeout``: seconds that nodes have for training or evaluation in a round.

        Raises:
            CheckpointError: ``checkpoint`` belongs to another model or algorithm, is damaged, or cannot be written.
            RunFailed: the run cannot continue (:class:`fastagg.integrations.goals.Settings`).
        """
        _checks.whole("num_rounds", num_rounds, least=0)
        check_limits(timeout=timeout)
        self._kinds = ["train"] + [""] * (evaluate_fn is not None) + ["clients"] * (self.fraction_evaluate > 0)
        arrays = self.resumed(initial_arrays)
        self._result.arrays = arrays
        assert self.session is not None
        self.run.is_finished("num_rounds", num_rounds, self._rounds)
        self._runs = True
        log.info("fastagg: %s: rounds %d to %d", type(self).__name__, self._rounds + 1, num_rounds)
        self.summary()
        try:
            self._evaluated(arrays, evaluate_fn, None)
            del arrays
            train, evaluate = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
            while self._rounds < num_rounds and self.session.over is None:
                self._rounds += 1
                self._round(grid, timeout, train, evaluate, evaluate_fn)
        finally:
            self._runs = False
            self.session.close()
        for line in self.session.summary().splitlines():
            log.info("fastagg: %s", line)
        return self._result

    def _round(
        self, grid: Grid, timeout: float, train: ConfigRecord, evaluate: ConfigRecord, function: Evaluate | None
    ) -> None:
        assert self.session is not None and self.server is not None
        number, result = self._rounds, self._result
        self._streaming = streaming = StreamedGrid(grid, self.server)
        self._tasks.end()  # tasks are still open if a subclass did not call aggregate_train of this class
        messages = list(self.configure_train(number, result.arrays, train, grid))
        self._sent = [message.metadata for message in messages]
        replies = streaming.send_and_receive(messages, timeout=timeout)
        result.arrays = ArrayRecord()  # the model has been sent, so its memory can be used for replies
        del messages
        trained, metrics = self.aggregate_train(number, replies)
        looked_at = replies.looked_at
        del replies
        if looked_at and self.server.layout.size >= _LARGE:  # reading a record's properties makes reference cycles
            gc.collect()
        result.arrays = arrays = write_model(self.server.parameters()) if trained is None else trained
        del trained
        self._adopt(read(arrays))
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        self._save()  # before the evaluation, so that an error in the evaluation does not lose the step
        asked = self.configure_evaluate(number, arrays, evaluate, grid)
        evaluated = self.aggregate_evaluate(number, streaming.send_and_receive(asked, timeout=timeout))
        if evaluated is not None:
            result.evaluate_metrics_clientapp[number] = evaluated
            self.session.evaluated(number, evaluated, self.server.parameters())
        self._evaluated(arrays, function, metrics)
        self._save()

    def _evaluated(self, arrays: ArrayRecord, function: Evaluate | None, train: MetricRecord | None) -> None:
        number, result, known = self._rounds, None, self._result.evaluate_metrics_serverapp
        assert self.session is not None and self.server is not None
        if function is not None and number % self.run.settings.evaluate_every == 0 and number not in known:
            try:
                result = function(number, arrays)
            except StopIteration as error:
                result, why = ended(error, number)
                self.session.end(why)
        if result is not None:
            known[number] = result
        self.session.measured(number, result, train, self.server.parameters())

    def resumed(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """Return the first model: the checkpoint's if there is one, otherwise a Server's or ``initial_arrays``.

        :meth:`start` calls this method. If a wrapper starts the run, pass the result to the wrapper::

            DifferentialPrivacyServerSideFixedClipping(strategy, ...).start(grid, strategy.resumed(arrays))
        """
        self._begin(read(initial_arrays), self._kinds)
        assert self.server is not None
        fresh = self.server.version == 0 and self._own is None
        return initial_arrays if fresh else write_model(self.server.parameters())

    def _begin(self, model: Arrays, kinds: Iterable[str] = ("train", "clients", "")) -> State:
        kept = super()._begin(model, kinds)
        self._result, self._sent, self._rounds = Result(), [], kept.get("rounds", self.run.server.version)
        restore(self._result, kept)
        return kept

    def _save(self) -> None:
        if self.server is not None:
            self.run.save({"rounds": self._rounds, **history(self._result)})

    # -- what Flower calls ---------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and open a task for each node."""
        unused = [name for name in _OF_START if getattr(self.run.settings, name) is not None]
        if unused and not self._runs:
            raise ConfigError(f"{', '.join(unused)}: a wrapper runs the rounds, and would ignore it")
        self._adopt(read(arrays))
        server = self._configure(server_round)
        stated: dict[str, object] = {**config, tasks.VERSION: server.version}
        messages = list(super().configure_train(server_round, arrays, ConfigRecord(stated), grid))
        self._sent = [message.metadata for message in messages]
        self._tasks.send([sent.dst_node_id for sent in self._sent])
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add each reply when it arrives, then end the round. Refused replies do not count. Return the model and the
        averaged metrics, or None twice if the model has not stepped.

        Raises:
            RunFailed: the run cannot continue (:class:`fastagg.integrations.goals.Settings`).
        """
        server, session = self.server, self.session
        if server is None or session is None:
            raise ConfigError(
                "aggregate_train: the model is not known yet: call super().configure_train, or strategy.resumed(arrays)"
            )
        if type(self)._check_and_log_replies is not FedAvg._check_and_log_replies:
            replies, _ = self._check_and_log_replies(replies, is_train=True)
        if self.deterministic:
            replies = sorted(replies, key=lambda message: message.metadata.src_node_id)
        # Nodes are found by the ids of sent messages, because an error that the SuperLink sends in place of a node's
        # reply does not name the node. A message gets its id when it is sent.
        asked = {sent.message_id: sent.dst_node_id for sent in self._sent if sent.message_id}
        replies = replies if isinstance(replies, Replies) else Replies(replies, looked_at=True)
        frees = not replies.looked_at

        def read_message(task: Dispatch, message: Message) -> Answer:
            return tasks.answer(server, task, message, self.weighted_by_key, still=frees)

        def keep(node: int, message: Message, receipt: Receipt | None) -> RecordDict | None:
            if not message.has_content():
                return None
            content = tasks.noted(message.content, node, receipt, frees=frees)
            if frees:
                message.content = content
            return content

        gathering = Gathering[int, Message, RecordDict | None](session, read_message, keep)
        for batch in replies.fold():
            nodes = (asked.get(message.metadata.reply_to_message_id, message.metadata.src_node_id) for message in batch)
            gathering.add(zip(nodes, batch, strict=True))
        self._miss(server_round, gathering, asked)
        if not gathering.close():
            return None, None
        contents = [content for content in gathering.good if content is not None]
        metrics = tasks.averaged(self.train_metrics_aggr_fn, contents, self.weighted_by_key)
        return write_model(server.parameters()), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages as Flower does. If a wrapper runs the rounds, first save a checkpoint of a new version."""
        server = self._adopt(read(arrays))
        if not self._runs and server.version != self.run.saved:  # saved here, because a wrapper may have added noise
            self._rounds = server_round
            self._save()
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _miss(self, server_round: int, gathering: Gathering[int, Any, Any], asked: Mapping[str, int]) -> None:
        """Count nodes without an answer as failures, except nodes whose replies came and a subclass left out. If a
        wrapper runs the rounds, count them only in a round in which no reply counts."""
        message_ids = set() if self._streaming is None else self._streaming.heard
        nodes = {node for message_id, node in asked.items() if message_id in message_ids}
        for node in self._tasks.busy:
            if node in nodes:
                log.info("fastagg: the reply of node %d in round %d was left out by the strategy", node, server_round)
            elif self._runs or not gathering.good:  # otherwise a wrapper may have left the reply out
                gathering.bad.append((node, ClientFailure(f"no answer in round {server_round}")))
