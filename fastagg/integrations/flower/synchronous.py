"""Flower's rounds with fastagg's arithmetic. Replies are added as they are read."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.serverapp.strategy import FedAvg, Result

from fastagg import _checks
from fastagg._types import Foreign
from fastagg.errors import ConfigError, FastaggError
from fastagg.integrations import replies as read_replies
from fastagg.integrations.evaluation import ended
from fastagg.integrations.flower import models, tasks
from fastagg.integrations.flower.records import read
from fastagg.integrations.flower.rounds import Replies, Round, Streaming
from fastagg.integrations.flower.settings import (
    Make,
    app,
    callable_or_none,
    proximal,
    say_what_differs,
    set_rate,
    split,
)
from fastagg.integrations.flower.tasks import Evaluate, log
from fastagg.integrations.run import FLOWER, Rule, Run, check_limits
from fastagg.integrations.session import Session
from fastagg.server.dispatch import Receipt
from fastagg.server.server import Server
from fastagg.storage import memory

_IGNORED = {
    "max_failures": "Flower samples each round's nodes anew; max_in_a_row ends a run whose clients all fail",
    "retry_after": "Flower samples each round's nodes anew",
    "evaluate_aside": "a round ends with its evaluation, as in Flower",
}
_LARGE = 1_000_000  # parameters, beside which a collection of garbage costs little
_OF_START = ("stop", "best", "on_version", "trackers")  # settings that start() handles


class SyncStrategy(FedAvg):
    """Any synchronous rule of fastagg as a Flower strategy.

    Wrappers (such as Flower's differential privacy) and subclasses may change the record that the strategy returned.
    The strategy then takes the changed record as the model and keeps the moments.

    Args:
        server: a preset (``fastagg.FedAvg``, ``FedAMS``, ``FedAdam``, ``FedYogi``, ...), with its settings bound by
            :func:`functools.partial`, from which the server is made with ``initial_arrays``; or a Server.
            Presets weight clients by ``weighted_by_key``, as Flower does, unless ``weighting`` is bound.
        lr: ``lr(round)``, the server's learning rate in round 1, 2, ... None: the preset's.
        proximal_mu: sent to clients as ``proximal-mu``, as in Flower's FedProx. FedProx without it sends 0.
        deterministic: add each round's replies in the order of node ids, so that results do not depend on the
            order of arrival. All replies of a round are then in memory at once.
        checkpoint: file for the server and the history, written after every round. :func:`fastagg.load` reads it.
        resume: continue from ``checkpoint`` if it exists.
        poll: seconds between two checks for replies.
        settings: ``stop``, ``best``, ``on_version``, ``trackers``, ``max_in_a_row``, ``max_seconds``,
            ``evaluate_every`` of :class:`fastagg.integrations.session.Settings`, and the settings of
            ``flwr.serverapp.strategy.FedAvg``.

    Attributes:
        server: the Server, after the start.
        session: the state of the run, after the start: ``session.summary()``, ``session.tally``.

    Raises:
        ConfigError: ``server`` is neither, or refuses its settings; a setting is unknown or would have no effect.
    """

    def __init__(
        self,
        server: Make | Server,
        *,
        lr: Callable[[int], float] | None = None,
        proximal_mu: float | None = None,
        deterministic: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = True,
        poll: float = 0.2,
        **settings: Foreign,
    ) -> None:
        self.settings, flower = split(settings, _IGNORED, SyncStrategy, max_failures=None)
        super().__init__(**flower)
        check_limits(poll=poll)
        self.rule = Rule(FLOWER, server, rounds=True)
        self.proximal_mu, self.lr = proximal(self.rule, proximal_mu), callable_or_none("lr", lr)
        self.poll, self.deterministic, self._files = poll, deterministic, (checkpoint, 1, resume)
        self._given = server if isinstance(server, Server) else None
        self.run: Run  # there with the server
        self._kinds: list[str] = []  # of metrics that there will be
        self.server: Server | None = self._given
        self.session: Session | None = None
        self._tasks: Round[int]  # by node; there with the server
        self._sent: list[Metadata] = []  # of the round's messages, without what they carry
        self._streaming: Streaming | None = None  # the grid of the round that start() runs
        self._rounds = 0  # finished
        self._result = Result()
        self._runs = False  # whether start() runs

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
        """Train as Flower does, but pull replies while earlier ones are added.

        The model of a checkpoint or Server replaces ``initial_arrays``. ``num_rounds`` includes the rounds before a
        restart.

        Raises:
            CheckpointError: ``checkpoint`` belongs to another model or algorithm, is damaged, or cannot be written.
            RunFailed: clients fail, or are refused, again and again.
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
        self._streaming = streaming = Streaming(grid, self.server, self.poll)
        self._tasks.end()  # of a round that a subclass did not aggregate here
        messages = list(self.configure_train(number, result.arrays, train, grid))
        self._sent = [message.metadata for message in messages]
        replies = streaming.send_and_receive(messages, timeout=timeout)
        result.arrays = ArrayRecord()  # it is sent, and while replies come its memory is theirs
        del messages
        trained, metrics = self.aggregate_train(number, replies)
        looked_at = replies.looked_at
        del replies
        if looked_at and self.server.layout.size >= _LARGE:  # Flower's properties of records make cycles
            gc.collect()
        result.arrays = arrays = models.outgoing(self.server) if trained is None else trained
        del trained
        self._adopt(arrays)
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        self._save()  # the step is made; an error of an evaluation must not undo it
        asked = self.configure_evaluate(number, arrays, evaluate, grid)
        found = self.aggregate_evaluate(number, streaming.send_and_receive(asked, timeout=timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[number] = found
            self.session.clients_found(number, found, self.server.parameters())
        self._evaluated(arrays, function, metrics)
        self._save()

    def _evaluated(self, arrays: ArrayRecord, function: Evaluate | None, train: MetricRecord | None) -> None:
        number, found, known = self._rounds, None, self._result.evaluate_metrics_serverapp
        assert self.session is not None and self.server is not None
        if function is not None and number % self.settings.evaluate_every == 0 and number not in known:
            try:
                found = function(number, arrays)
            except StopIteration as error:
                found, why = ended(error, number)
                self.session.end(why)
        if found is not None:
            known[number] = found
        self.session.measured(number, found, train, self.server.parameters())

    def resumed(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The model to start from: the checkpoint's if there is one, a Server's own, or ``initial_arrays``.

        :meth:`start` calls it itself. If a wrapper starts the run, pass the result to the wrapper::

            DifferentialPrivacyServerSideFixedClipping(strategy, ...).start(grid, strategy.resumed(arrays))
        """
        self._begin(initial_arrays)
        assert self.server is not None
        fresh = self.server.version == 0 and self._given is None
        return initial_arrays if fresh else models.outgoing(self.server)

    def _begin(self, arrays: ArrayRecord) -> None:
        self.run = run = Run(self.rule, self.settings, *self._files, log=log.info, warn=log.warning)
        run.place(app())
        kinds = self._kinds if self._kinds else ["train", "clients", ""]  # a wrapper runs the rounds
        kept = run.begin(read(arrays), kinds=kinds)
        self.server, self.session = run.server, run.session
        self._result, self._tasks, self._sent = Result(), Round(run.server), []
        self.session.book = self._tasks
        models.restore(self._result, kept)
        self._rounds = kept.get("rounds", run.server.version)
        say_what_differs(run.server, self.lr is not None, self.rule, strategy)

    def _save(self) -> None:
        if self.server is not None:
            self.run.save({"rounds": self._rounds, **models.history(self._result)})

    # -- what Flower calls ---------------------------------------------------------------------------------------

    def _adopt(self, arrays: ArrayRecord) -> Server:
        """Take the arrays from Flower as the model, even if other code has changed them."""
        began = self.server is not None and self.session is not None
        if not began:
            self._begin(arrays)
        assert self.server is not None
        given = models.formed(self.server, read(arrays))
        if not began and not models.holds(self.server, given):
            self.server, self.session = self._given, None
            raise ConfigError(
                "the server goes on from another model than the one that it was handed: start from "
                "strategy.resumed(initial_arrays)"
            )
        self._tasks.adopt(given)
        return self.server

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and remember the task of each."""
        unused = [name for name in _OF_START if getattr(self.settings, name) is not None]
        if unused and not self._runs:
            raise ConfigError(f"{', '.join(unused)}: a wrapper runs the rounds, and would ignore it")
        server = self._adopt(arrays)
        self._tasks.end()  # of a round that a wrapper gave up
        set_rate(server, self.lr, server_round)
        stated: dict[str, object] = {**config, tasks.VERSION: server.version}
        if self.proximal_mu is not None:
            stated["proximal-mu"] = self.proximal_mu
        messages = list(super().configure_train(server_round, arrays, ConfigRecord(stated), grid))
        self._sent = [message.metadata for message in messages]
        self._tasks.send([sent.dst_node_id for sent in self._sent])
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add every reply as it arrives, then close the round with the good replies.

        Raises:
            RunFailed: clients fail, or are refused, again and again.
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
        # An error about a node may come from the SuperLink. Ids are given to messages when they are sent.
        asked = {sent.message_id: sent.dst_node_id for sent in self._sent}
        asked.pop("", None)
        before, round_ = server.version, _Round(asked)
        replies = replies if isinstance(replies, Replies) else _kept(replies)
        frees = not replies.looked_at
        for batch in replies.fold():
            self._fold(session, batch, round_, frees)
        session.close_round(log.warning)
        memory.trim()  # there is no update before the next round
        self._miss(server_round, round_)
        log.info("fastagg: round %d: %d updates, version %d", server_round, len(round_.good), server.version)
        for node, error in round_.bad:
            session.failed(node, str(error)) if isinstance(error, tasks.Failed) else session.refused(node, error)
        session.failures.check(())
        tasks.raise_if_useless(round_.good, [error for _, error in round_.bad])
        if server.version == before:
            return None, None
        metrics = tasks.averaged(self.train_metrics_aggr_fn, round_.good, self.weighted_by_key)
        return models.outgoing(server), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower does."""
        server = self._adopt(arrays)
        if not self._runs and server.version != self.run.saved:  # a wrapper may have added noise, which is saved too
            self._rounds = server_round
            self._save()
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _fold(self, session: Session, messages: list[Message], round_: _Round, frees: bool) -> None:
        """Take replies. With ``frees``, what stays of them has no arrays."""
        arrived: list[tasks.Arrived] = []
        for message in messages:
            node = round_.asked.get(message.metadata.reply_to_message_id, message.metadata.src_node_id)
            if node in round_.heard:
                log.warning("fastagg: dropped a reply of node %d: it has answered already", node)
                continue
            round_.heard.add(node)
            try:
                arrived.append((self._tasks.answered(node), message))
            except FastaggError as error:
                round_.bad.append((node, read_replies.bare(error)))
        outcomes = tasks.take(self._tasks, arrived, self.weighted_by_key, still=frees)
        for (one, message), outcome in zip(arrived, outcomes, strict=True):
            node = one.who
            if isinstance(outcome, Receipt):
                session.taken(node, outcome)
                content = tasks.noted(message.content, node, outcome, frees=frees)
                round_.good.append(content)
                if frees:
                    message.content = content
            else:
                round_.bad.append((node, outcome))
                if frees and message.has_content():
                    message.content = tasks.noted(message.content, node)

    def _miss(self, server_round: int, round_: _Round) -> None:
        """End the tasks without an answer. Those that a subclass has left out did not fail."""
        heard = set() if self._streaming is None else self._streaming.heard
        came = {node for message_id, node in round_.asked.items() if message_id in heard}
        for node in self._tasks.busy:
            if node in came:
                log.info("fastagg: the reply of node %d in round %d was left out by the strategy", node, server_round)
                continue
            log.warning("fastagg: node %d did not answer round %d", node, server_round)
            if self._runs or not round_.good:  # a wrapper may have left it out
                round_.bad.append((node, tasks.Failed(f"no answer in round {server_round}")))
        self._tasks.end()


@dataclass
class _Round:
    asked: dict[str, int]  # node by message id
    heard: set[int] = field(default_factory=set)  # nodes
    good: list[RecordDict] = field(default_factory=list)  # metrics of those that were taken
    bad: list[tuple[int, FastaggError]] = field(default_factory=list)


def _kept(messages: Iterable[Message]) -> Replies:
    """Replies that belong to somebody else."""
    kept = Replies(messages)
    kept.looked_at = True
    return kept
