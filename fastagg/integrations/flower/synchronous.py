"""Flower's rounds with fastagg's arithmetic. Replies are added as they are read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fastagg import _checks
from fastagg._types import Foreign
from fastagg.errors import ConfigError, FastaggError
from fastagg.integrations.flower import history, models, tasks
from fastagg.integrations.flower.models import Make
from fastagg.integrations.flower.records import read
from fastagg.integrations.flower.settings import callable_or_none, say_what_differs, set_rate, split
from fastagg.integrations.flower.tasks import Evaluate, log
from fastagg.integrations.session import Session
from fastagg.server import checkpoint as files
from fastagg.server.dispatch import Dispatch, Receipt
from fastagg.server.server import Server
from fastagg.storage import memory

_IGNORED = {
    "max_failures": "Flower samples each round's nodes anew; max_in_a_row ends a run whose clients all fail",
    "retry_after": "Flower samples each round's nodes anew",
    "evaluate_aside": "a round ends with its evaluation, as in Flower",
}
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
        self.settings, flower = split(settings, _IGNORED, max_failures=None)
        super().__init__(**flower)
        self.poll = _checks.number("poll", poll, least=0)
        if proximal_mu is not None:
            _checks.number("proximal_mu", proximal_mu, least=0)
        elif models.preset_of(server) == "FedProx":
            log.warning("fastagg: FedProx without proximal_mu: it is 0, which is FedAvg")
            proximal_mu = 0.0
        self.proximal_mu, self.lr = proximal_mu, callable_or_none("lr", lr)
        self._make, self.deterministic, self.resume = server, deterministic, resume
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.server: Server | None = server if isinstance(server, Server) else None
        self.session: Session | None = None
        self._returned = models.Returned()
        self._tasks: dict[int, Dispatch] = {}  # by node
        self._messages: list[Message] = []
        self._rounds, self._saved = 0, -1  # finished rounds; the version in the checkpoint
        self._result = Result()
        self._runs = self._said = False  # whether start() runs; whether a changed model was logged

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
        arrays = self.resumed(initial_arrays)
        assert self.session is not None
        self._runs = True
        log.info("fastagg: %s: rounds %d to %d", type(self).__name__, self._rounds + 1, num_rounds)
        self.summary()
        try:
            self._evaluated(arrays, evaluate_fn, None)
            train, evaluate = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
            while self._rounds < num_rounds and self.session.over is None:
                self._rounds += 1
                arrays = self._round(grid, arrays, timeout, train, evaluate, evaluate_fn)
        finally:
            self._runs = False
            self.session.close()
        for line in self.session.summary().splitlines():
            log.info("fastagg: %s", line)
        self._result.arrays = arrays
        return self._result

    def _round(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        timeout: float,
        train: ConfigRecord,
        evaluate: ConfigRecord,
        function: Evaluate | None,
    ) -> ArrayRecord:
        assert self.session is not None and self.server is not None
        number, result = self._rounds, self._result
        streaming = Streaming(grid, self.server, self.poll)
        replies = streaming.send_and_receive(self.configure_train(number, arrays, train, grid), timeout=timeout)
        trained, metrics = self.aggregate_train(number, replies)
        if trained is not None:
            arrays = trained
            self._adopt(arrays)
        if metrics is not None:
            result.train_metrics_clientapp[number] = metrics
        asked = self.configure_evaluate(number, arrays, evaluate, grid)
        found = self.aggregate_evaluate(number, streaming.send_and_receive(asked, timeout=timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[number] = found
            self.session.clients_found(number, found, self.server.snapshot())
        self._evaluated(arrays, function, metrics)
        self._save()
        return arrays

    def _evaluated(self, arrays: ArrayRecord, function: Evaluate | None, train: MetricRecord | None) -> None:
        number, found, known = self._rounds, None, self._result.evaluate_metrics_serverapp
        assert self.session is not None and self.server is not None
        if function is not None and number % self.settings.evaluate_every == 0 and number not in known:
            try:
                found = function(number, arrays)
            except StopIteration as error:
                found = self.session.ended_by(error, number)
        if found is not None:
            known[number] = found
        self.session.told(number, found, train, self.server.snapshot())

    def resumed(self, initial_arrays: ArrayRecord) -> ArrayRecord:
        """The model to start from: the checkpoint's if there is one, a Server's own, or ``initial_arrays``.

        :meth:`start` calls it itself. If a wrapper starts the run, pass the result to the wrapper::

            DifferentialPrivacyServerSideFixedClipping(strategy, ...).start(grid, strategy.resumed(arrays))
        """
        self._begin(initial_arrays)
        assert self.server is not None
        arrays = models.outgoing(self.server)
        self._returned.keep(_bytes(arrays))
        return arrays

    def _begin(self, arrays: ArrayRecord) -> None:
        self.server = server = models.made(self._make, read(arrays), rounds=True)
        self.session = Session(server, self.settings, say=log.info)
        self._result, self._tasks, self._messages, self._rounds = Result(), {}, [], 0
        self._returned, self._saved = models.Returned(), -1
        if self.checkpoint is not None and self.resume and self.checkpoint.exists():
            state = files.read(self.checkpoint)
            server.load_state_dict(state)
            kept = state.get("flower", {})  # not there in a file of Server.save
            history.restore(self._result, kept)
            self._rounds = kept.get("rounds", server.version)
            self.session.load_state_dict(kept.get("session", {}))
            for client, version in files.open_tasks(state):
                server.forget(client, version)
            self._saved = server.version
            log.info("fastagg: resumed version %d after %d rounds", server.version, self._rounds)
        say_what_differs(server, self.lr is not None)

    def _save(self) -> None:
        if self.checkpoint is None or self.server is None or self.session is None:
            return
        kept = {"rounds": self._rounds, "session": self.session.state_dict(), **history.kept(self._result)}
        files.write({**self.server.state_dict(copy=False), "flower": kept}, self.checkpoint)
        self._saved = self.server.version

    # -- what Flower calls ---------------------------------------------------------------------------------------

    def _adopt(self, arrays: ArrayRecord) -> Server:
        """Take the arrays from Flower as the model, even if other code has changed them."""
        began = self.server is not None and self.session is not None
        if not began:
            self._begin(arrays)
        assert self.server is not None
        if not began and (self.server.version or isinstance(self._make, Server)):
            self._returned.keep(_bytes(models.outgoing(self.server)))
            if not self._returned.is_same(_bytes(arrays)):
                self.server, self.session = (self._make if isinstance(self._make, Server) else None), None
                raise ConfigError(
                    "the server goes on from another model than the one that it was handed: start from "
                    "strategy.resumed(initial_arrays)"
                )
        if not self._returned.is_same(_bytes(arrays)):
            if began:
                self._give_up_tasks()
                models.put(self.server, models.formed(self.server, read(arrays)))
                if not self._said:
                    self._said = True
                    log.info("fastagg: the model came back changed (by a wrapper or a subclass); it is the model now")
            self._returned.keep(_bytes(arrays))
        return self.server

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample nodes as Flower does, and remember the task of each."""
        unused = [name for name in _OF_START if getattr(self.settings, name) is not None]
        if unused and not self._runs:
            raise ConfigError(f"{', '.join(unused)}: a wrapper runs the rounds, and would ignore it")
        server = self._adopt(arrays)
        self._give_up_tasks()  # of a round that a wrapper gave up
        set_rate(server, self.lr, server_round)
        told: dict[str, object] = {**config, tasks.VERSION: server.version}
        if self.proximal_mu is not None:
            told["proximal-mu"] = self.proximal_mu
        self._messages = messages = list(super().configure_train(server_round, arrays, ConfigRecord(told), grid))
        self._tasks = {node: server.dispatch(node) for node in (message.metadata.dst_node_id for message in messages)}
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
            return None, None
        if self.deterministic:
            replies = sorted(replies, key=lambda message: message.metadata.src_node_id)
        # An error about a node may come from the SuperLink. Ids are given to messages when they are sent.
        asked = {sent.metadata.message_id: sent.metadata.dst_node_id for sent in self._messages}
        asked.pop("", None)
        self._messages, before = [], server.version
        folded, bad = list[RecordDict](), list[tuple[int, FastaggError]]()
        for batch in replies.batches if isinstance(replies, Replies) else [list(replies)]:
            self._fold(server, session, batch, asked, folded, bad)
            batch.clear()  # before more are read
        server.close_round()
        memory.trim()  # there is no update before the next round
        bad += [(node, tasks.Failed(f"no answer in round {server_round}")) for node in self._tasks]
        for node in self._tasks:
            log.warning("fastagg: node %d did not answer round %d", node, server_round)
        self._give_up_tasks()
        log.info("fastagg: round %d: %d updates, version %d", server_round, len(folded), server.version)
        for node, error in bad:
            session.failed(node, str(error)) if isinstance(error, tasks.Failed) else session.refused(node, error)
        session.failures.check(())
        if server.version == before:
            return None, None
        arrays = models.outgoing(server)
        self._returned.keep(_bytes(arrays))
        return arrays, tasks.averaged(self.train_metrics_aggr_fn, folded, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As Flower does."""
        server = self._adopt(arrays)
        if not self._runs and server.version != self._saved:  # a wrapper may have added noise, which is saved too
            self._rounds = server_round
            self._save()
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _fold(
        self, server: Server, session: Session, messages: list[Message], asked: dict[str, int],
        folded: list[RecordDict], bad: list[tuple[int, FastaggError]],
    ) -> None:  # fmt: skip
        """Take replies. Add the metrics of good replies to ``folded``, and other replies to ``bad``."""
        arrived: list[tasks.Arrived] = []
        for message in messages:
            node = asked.get(message.metadata.reply_to_message_id, message.metadata.src_node_id)
            if (task := self._tasks.pop(node, None)) is None:
                log.warning("fastagg: dropped a reply of node %d: it has answered already, or was not asked", node)
            else:
                arrived.append((task, node, message))
        for (_, node, message), outcome in zip(arrived, tasks.take(server, arrived, self.weighted_by_key), strict=True):
            if isinstance(outcome, Receipt):
                session.taken(node, outcome)
                folded.append(tasks.metrics_of(message.content, node, outcome))
            else:
                bad.append((node, outcome))

    def _give_up_tasks(self) -> None:
        for task in self._tasks.values():
            assert self.server is not None
            self.server.forget(task.client, task.version)
        self._tasks.clear()


def _bytes(arrays: ArrayRecord) -> dict[str, bytes]:
    return {name: array.data for name, array in arrays.items()}


class Streaming:
    """A grid whose ``send_and_receive`` returns before replies arrive."""

    def __init__(self, grid: Grid, server: Server, poll: float) -> None:
        self._grid, self._server, self._poll = grid, server, poll

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Replies:
        waiting = {sent for sent in self._grid.push_messages(list(messages)) if sent}
        return Replies(self._batches(waiting, None if timeout is None else time.monotonic() + timeout))

    def _batches(self, waiting: set[str], until: float | None) -> Iterator[list[Message]]:
        while waiting:
            for batch in tasks.pull(self._grid, waiting, self._server):
                waiting -= {message.metadata.reply_to_message_id for message in batch}
                yield batch
            if not waiting or (until is not None and time.monotonic() > until):
                return
            time.sleep(self._poll)


class Replies:
    """A round's replies as they arrive: in batches, or one by one."""

    def __init__(self, batches: Iterator[list[Message]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Message]:
        for batch in self.batches:
            yield from batch
